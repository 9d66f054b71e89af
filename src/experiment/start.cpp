#include "experiment/start.h"

#include <fcntl.h>
#include <sys/file.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/json.h"
#include "model/build.h"
#include "record/document.h"
#include "record/run_record.h"
#include "train/checkpoint.h"

namespace faultline::experiment {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStarts = "starts";

// Waits; the kernel drops the lock with its holder.
FileDescriptor wait_for(const fs::path& file) {
  FileDescriptor lock = open_file(file, O_RDWR | O_CREAT);
  while (::flock(lock.get(), LOCK_EX) != 0)
    if (errno != EINTR) fail_with_errno(file, "lock", errno);
  return lock;
}

void make_start(lab::LoadedModel& loaded, const Node& recipe, const fs::path& start) {
  lab::TrainingSpec spec = lab::read_training(recipe);
  spec.plan.rules.clear();
  spec.aqn.reset();
  std::vector<train::StageSpec>& stages = spec.train.spec.stages;
  stages.front().max_new_tokens = stages.back().max_new_tokens;  // validated as the trials are
  stages.front().slots = stages.back().slots;
  stages.resize(1);
  spec.train.spec.checkpoint_every = 0;
  spec.train.spec.validate_first = false;
  const auto seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  record::RunDirectory directory =
      record::begin_run(start.parent_path() / "runs", {"start", to_json(recipe), seed}, {});
  lab::TrainingRun run(loaded, spec);
  run.run(directory, {});
  run.save_start(start);
}

}  // namespace

std::optional<std::string> start_identity(const Node& recipe) {
  const Node* train_section = recipe.find("train");
  if (train_section == nullptr || train_section->find("sft") == nullptr) return std::nullopt;
  const Json all = to_json(recipe), &train = all.at("train");
  return record::json_hash({{"seed", all.at("seed")},
                            {"task", all.value("task", Json())},
                            {"sft", train.at("sft")},
                            {"lora", train.value("lora", Json())},
                            {"shards", train.at("shards")},
                            {"problems", train.at("validation_problems")},
                            {"max_new_tokens", train.at("max_new_tokens")}})
      .substr(0, 16);
}

std::optional<fs::path> shared_start(lab::LoadedModel& loaded, const std::string& weights, const Node& recipe,
                                     const fs::path& folder) {
  const std::optional<std::string> identity = start_identity(recipe);
  if (!identity) return std::nullopt;
  fs::path start = folder / kStarts / *identity;
  fs::create_directories(start.parent_path());
  const FileDescriptor alone = wait_for(start.string() + ".lock");
  if (!fs::exists(start)) {
    FL_ASSERT(model::weights_fingerprint(*loaded.model) == weights);
    make_start(loaded, recipe, start);
  }
  return start;
}

void load_start(lab::LoadedModel& loaded, const Node& recipe, const fs::path& start) {
  const lab::TrainingSpec spec = lab::read_training(recipe);
  if (spec.train.spec.lora.rank > 0)
    throw UsageError("experiment: a fault cannot be calibrated on low-rank adapters; leave out train.lora");
  train::AdamW optimizer(loaded.model->parameters(), spec.train.spec.stages.front().optimizer);
  std::vector<at::Tensor> reference;
  train::read_checkpoint(start, train::model_fingerprint(*loaded.model, optimizer), optimizer, reference,
                         train::Moments::kLeftOut);
}

void remove_starts(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder / kStarts, ignored);
}

}  // namespace faultline::experiment
