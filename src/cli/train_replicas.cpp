#include "cli/train_replicas.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/text.h"
#include "cluster/process_groups.h"
#include "model/build.h"
#include "race/run_processes.h"

namespace faultline::cli {
namespace {

constexpr double kJoinSeconds = 300;
constexpr auto kStepTimeout = std::chrono::minutes(60);  // the slowest rank's step

using Backend = c10::intrusive_ptr<c10d::Backend>;

// What a transport says of a rank that is gone is no mistake of ours.
template <typename Start>
void carry_out(Start start) {
  try {
    start()->wait();
  } catch (const std::exception& error) {
    throw RuntimeFailure(
        fmt::format("the exchange with the other processes failed, one of them has ended or cannot be reached: {}",
                    first_line(error.what())));
  }
}

// `own` lies where the backend reaches it: in the CPU's memory for Gloo, on this rank's GPU for NCCL.
at::Tensor gather(const Backend& backend, int64_t ranks, const at::Tensor& own) {
  at::Tensor input = own.detach().reshape(-1).contiguous();
  at::Tensor all = at::empty({ranks * input.numel()}, input.options());
  if (input.numel() > 0) carry_out([&] { return backend->_allgather_base(all, input); });
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), ranks);
  return all.view(shape);
}

// Why this rank cannot use NCCL; "" where it can. Before other threads run: it sets variables of the environment.
std::string obstacle_to_nccl(const cluster::Membership& membership, const std::string& device) {
  if (device != "cuda") return "--device " + device;
  if (!membership.local_rank) return "LOCAL_RANK is not set";
  // A rank that is gone must end the others: torch's own watch stays on, unlike in a race, which has one of its own.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", 0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "1", 0);
  if (membership.on_loopback()) cluster::keep_nccl_on_loopback();
  try {
    cluster::load_nccl();
  } catch (const UsageError&) {
    return "libfaultline_nccl.so was not built or does not load";
  }
  const int gpus = cluster::count_gpus();
  return *membership.local_rank < gpus ? "" : fmt::format("a machine has {} GPUs", gpus);
}

// Ranks of one name share a GPU. Machines are told apart as NCCL does it.
std::string gpu_name(const cluster::Membership& membership) {
  const char *host_id = std::getenv("NCCL_HOSTID"), *visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return fmt::format("{} {} {}", host_id != nullptr ? host_id : host_name() + boot,
                     visible != nullptr ? visible : "all", membership.local_rank.value_or(0));
}

// What keeps one of the ranks from NCCL, on all of them; "" where nothing does.
std::string why_gloo(const train::Replicas& replicas, const cluster::Membership& membership,
                     const std::string& own_obstacle) {
  for (const std::string& obstacle : train::gathered(replicas, own_obstacle))
    if (!obstacle.empty()) return obstacle;
  std::vector<std::string> gpus = train::gathered(replicas, gpu_name(membership));
  std::sort(gpus.begin(), gpus.end());
  return std::adjacent_find(gpus.begin(), gpus.end()) == gpus.end() ? "" : "processes share a GPU";
}

void check_shards(const lab::TrainingSpec& spec, int64_t ranks) {
  const int64_t shards = spec.train.spec.stages.front().shards;
  if (shards % ranks != 0)
    throw UsageError(
        fmt::format("train.shards: {} processes cannot share {} shards equally; say train.shards={}, which one process "
                    "can train as well",
                    ranks, shards, ranks));
}

void agree_on_recipe(const train::Replicas& replicas, const Node& recipe) {
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

std::string TrainingJob::exchange() const { return replicas.alone() ? "" : why_gloo.empty() ? "nccl" : "gloo"; }

std::string TrainingJob::tell(const std::string& from_first) const {
  return train::gathered(replicas, from_first).front();
}

void TrainingJob::agree_on_model(model::CausalLm& model) const {
  if (replicas.alone()) return;
  const std::vector<std::string> all = train::gathered(replicas, model::weights_fingerprint(model));
  if (std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) != all.end())
    throw UsageError("train: the ranks hold different models, or in different types; give all of them the same files");
}

void add_complaints_of_others(const train::Replicas& replicas, std::vector<Complaint>& complaints) {
  if (replicas.alone()) return;
  const at::Tensor all = replicas.gather(at::full({}, std::ssize(complaints), at::kLong));
  for (int64_t rank = 0; rank < replicas.ranks; ++rank)
    if (rank != replicas.rank && all[rank].item<int64_t>() > 0)
      complaints.push_back({ComplaintCode::kOtherProcess, "", fmt::format("rank {}", rank),
                            fmt::format("rank {} cannot prove its part; its own record says why", rank)});
}

TrainingJob join_training(const lab::TrainingSpec& spec, const Node& recipe, bool resumes, const std::string& device) {
  const auto membership = cluster::membership_from_environment();
  if (!membership || membership->ranks == 1) return {};
  check_shards(spec, membership->ranks);
  if (resumes)
    throw UsageError("--resume: a run of several processes is resumed by one, which computes the same shards");
  const std::string obstacle = obstacle_to_nccl(*membership, device);
  const auto store = cluster::open_store(*membership, kJoinSeconds);
  const int rank = membership->rank, ranks = membership->ranks;
  const Backend gloo =
      cluster::make_gloo(store, "train", rank, ranks, kStepTimeout, cluster::gloo_address(*membership));
  TrainingJob job;
  job.replicas = {rank, ranks, [store, gloo, ranks](const at::Tensor& own) { return gather(gloo, ranks, own.cpu()); }};
  if (membership->local_rank) job.device = fmt::format("cuda:{}", *membership->local_rank);
  agree_on_recipe(job.replicas, recipe);
  job.why_gloo = why_gloo(job.replicas, *membership, obstacle);
  if (!job.why_gloo.empty()) return job;
  const Backend nccl = cluster::make_nccl(store, "train-gpus", rank, ranks, kStepTimeout);
  job.replicas.gather = [store, gloo, nccl, ranks](const at::Tensor& own) {
    if (!own.is_cuda()) return gather(gloo, ranks, own);
    // All are there: no kernel is left waiting on this GPU for a rank that is gone.
    carry_out([&] { return gloo->barrier(); });
    return gather(nccl, ranks, own);
  };
  job.close = [nccl] { nccl->shutdown(); };
  (void)job.replicas.gather(at::zeros({1}, at::Device(job.device)));  // connects now, not at the first gradient
  return job;
}

}  // namespace faultline::cli
