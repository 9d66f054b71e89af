#include "cli/train_replicas.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/text.h"
#include "model/weights_fingerprint.h"
#include "race/gloo_backend.h"
#include "race/nccl_backend.h"
#include "race/run_processes.h"

namespace faultline::cli {
namespace {

constexpr double kJoinSeconds = 300;
constexpr auto kStepTimeout = std::chrono::minutes(60);  // the slowest rank's step

using Backend = c10::intrusive_ptr<c10d::Backend>;

// `own` lies where the backend reaches it: in the CPU's memory for Gloo, on this rank's GPU for NCCL.
at::Tensor gather(const Backend& backend, int64_t ranks, const at::Tensor& own) {
  at::Tensor input = own.detach().reshape(-1).contiguous();
  at::Tensor all = at::empty({ranks * input.numel()}, input.options());
  if (input.numel() > 0) backend->_allgather_base(all, input)->wait();
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), ranks);
  return all.view(shape);
}

// Whether this rank has a GPU that no other rank has, and NCCL.
bool can_use_nccl(const race::Membership& membership, const std::string& device) {
  if (device != "cuda" || !membership.local_rank) return false;
  // A rank that is gone must end the others: torch's own watch stays on, unlike in a race, which has one of its own.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", 0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "1", 0);
  if (membership.on_loopback()) race::keep_nccl_on_loopback();
  try {
    race::load_nccl();
  } catch (const UsageError&) {  // not built, or not for this torch
    return false;
  }
  return *membership.local_rank < race::count_gpus();
}

bool all_agree(const Replicas& replicas, bool own) {
  return replicas.gather(at::full({}, own ? 1 : 0, at::kLong)).min().item<int64_t>() == 1;
}

void check_shards(const TrainingSpec& spec, int64_t ranks) {
  const int64_t shards = spec.train.spec.stages.front().shards;
  if (shards % ranks != 0)
    throw UsageError(
        fmt::format("train.shards: {} processes cannot share {} shards equally; say train.shards={}, which one process "
                    "can train as well",
                    ranks, shards, ranks));
}

void agree_on_recipe(const Replicas& replicas, const Node& recipe) {
  const uint64_t mine = hash64(to_json(recipe).dump());
  const at::Tensor all = replicas.gather(at::full({}, static_cast<int64_t>(mine), at::kLong));
  if (!all.eq(static_cast<int64_t>(mine)).all().item<bool>())
    throw UsageError("train: the ranks were given different recipes or overrides; start all of them alike");
}

}  // namespace

Globals TrainingJob::globals_of(const Globals& given) const {
  Globals own = given;
  if (replicas.rank > 0) own.quiet = true;
  if (!device.empty() && given.device == "cuda") own.device = device;
  return own;
}

std::string TrainingJob::tell(const std::string& from_first) const { return gathered(replicas, from_first).front(); }

void TrainingJob::agree_on_model(CausalLm& model) const {
  if (replicas.alone()) return;
  const std::vector<std::string> all = gathered(replicas, weights_fingerprint(model));
  if (std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) != all.end())
    throw UsageError("train: the ranks hold different models, or in different types; give all of them the same files");
}

void add_complaints_of_others(const Replicas& replicas, std::vector<std::string>& complaints) {
  if (replicas.alone()) return;
  const at::Tensor all = replicas.gather(at::full({}, std::ssize(complaints), at::kLong));
  for (int64_t rank = 0; rank < replicas.ranks; ++rank)
    if (rank != replicas.rank && all[rank].item<int64_t>() > 0)
      complaints.push_back(fmt::format("rank {} cannot prove its part; its own record says why", rank));
}

TrainingJob join_training(const TrainingSpec& spec, const Node& recipe, bool resumes, const std::string& device) {
  const auto membership = race::membership_from_environment();
  if (!membership || membership->ranks == 1) return {};
  check_shards(spec, membership->ranks);
  if (resumes)
    throw UsageError("--resume: a run of several processes is resumed by one, which computes the same shards");
  const auto store = race::open_store(*membership, kJoinSeconds);
  const int rank = membership->rank, ranks = membership->ranks;
  const Backend gloo = race::make_gloo(store, "train", rank, ranks, kStepTimeout, membership->on_loopback());
  TrainingJob job;
  job.replicas = {rank, ranks, [store, gloo, ranks](const at::Tensor& own) { return gather(gloo, ranks, own.cpu()); }};
  job.exchange = "gloo";
  if (membership->local_rank) job.device = fmt::format("cuda:{}", *membership->local_rank);
  agree_on_recipe(job.replicas, recipe);
  if (!all_agree(job.replicas, can_use_nccl(*membership, device))) return job;
  const Backend nccl = race::make_nccl(store, "train-gpus", rank, ranks, kStepTimeout);
  job.replicas.gather = [store, gloo, nccl, ranks](const at::Tensor& own) {
    return gather(own.is_cuda() ? nccl : gloo, ranks, own);
  };
  job.exchange = "nccl";
  return job;
}

}  // namespace faultline::cli
