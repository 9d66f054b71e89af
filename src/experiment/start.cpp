#include "experiment/start.h"

#include <fcntl.h>
#include <sys/file.h>

#include "base/error.h"
#include "model/weights_fingerprint.h"
#include "record/document.h"
#include "record/file_descriptor.h"
#include "record/json_text.h"
#include "train/checkpoint.h"

namespace faultline {
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

void make_start(LoadedModel& loaded, const Node& recipe, const fs::path& start) {
  TrainingSpec spec = read_training(recipe);
  spec.plan.rules.clear();
  spec.aqn.reset();
  std::vector<StageSpec>& stages = spec.train.spec.stages;
  stages.front().max_new_tokens = stages.back().max_new_tokens;  // validated as the trials are
  stages.front().slots = stages.back().slots;
  stages.resize(1);
  spec.train.spec.checkpoint_every = 0;
  spec.train.spec.validate_first = false;
  Manifest manifest;
  manifest.recipe_name = "start";
  manifest.recipe = as_record(to_json(recipe));
  manifest.host = host_description();
  RunDirectory directory = RunDirectory::create(start.parent_path() / "runs", manifest);
  TrainingRun run(loaded, spec);
  run.run(directory, {});
  run.save_start(start);
}

}  // namespace

std::optional<std::string> start_identity(const Node& recipe) {
  const Node* train_section = recipe.find("train");
  if (train_section == nullptr || train_section->find("sft") == nullptr) return std::nullopt;
  const Json all = as_record(to_json(recipe)), &train = all.at("train");
  return json_hash({{"seed", all.at("seed")},
                    {"task", all.value("task", Json())},
                    {"sft", train.at("sft")},
                    {"lora", train.value("lora", Json())},
                    {"shards", train.at("shards")},
                    {"problems", train.at("validation_problems")},
                    {"max_new_tokens", train.at("max_new_tokens")}})
      .substr(0, 16);
}

std::optional<fs::path> shared_start(LoadedModel& loaded, const std::string& weights, const Node& recipe,
                                     const fs::path& folder) {
  const std::optional<std::string> identity = start_identity(recipe);
  if (!identity) return std::nullopt;
  fs::path start = folder / kStarts / *identity;
  fs::create_directories(start.parent_path());
  const FileDescriptor alone = wait_for(start.string() + ".lock");
  if (!fs::exists(start)) {
    FL_ASSERT(weights_fingerprint(*loaded.model) == weights);
    make_start(loaded, recipe, start);
  }
  return start;
}

void load_start(LoadedModel& loaded, const Node& recipe, const fs::path& start) {
  const TrainingSpec spec = read_training(recipe);
  if (spec.train.spec.lora.rank > 0)
    throw UsageError("experiment: a fault cannot be calibrated on low-rank adapters; leave out train.lora");
  AdamW optimizer(loaded.model->parameters(), spec.train.spec.stages.front().optimizer);
  std::vector<at::Tensor> reference;
  read_checkpoint(start, model_fingerprint(*loaded.model, optimizer), optimizer, reference, Moments::kLeftOut);
}

void remove_starts(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder / kStarts, ignored);
}

}  // namespace faultline
