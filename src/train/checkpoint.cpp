#include "train/checkpoint.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/files/file.h"
#include "base/files/mapped_file.h"
#include "base/files/safetensors_header.h"
#include "base/text.h"
#include "model/build.h"
#include "model/checkpoint/safetensors_writer.h"
#include "record/checkpoint_state.h"

namespace faultline::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTensors = "state.safetensors";
constexpr const char* kState = "state.json";
constexpr std::string_view kPrefix = "step-";

std::string hash_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  return fmt::format("{:016x}", hash64({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
}

[[noreturn]] void refuse_damaged(const fs::path& folder, const std::string& what) {
  throw RuntimeFailure(fmt::format("{}: {}; the checkpoint is damaged: remove the folder to resume from the one before",
                                   folder.string(), what));
}

std::vector<fs::path> checkpoints_in(const fs::path& checkpoints) {
  std::vector<fs::path> found;
  if (!fs::exists(checkpoints)) return found;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    if (entry.is_directory() && entry.path().filename().string().starts_with(kPrefix)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

using Tensors = std::map<std::string, at::Tensor>;

// Copies of all tensors, which must be fp32.
Tensors read_tensors(const MappedFile& file, const fs::path& folder) {
  const std::size_t size = file.bytes().size();
  const uint64_t header =
      safetensors_header_size(file.text(0, std::min<std::size_t>(size, kSafetensorsPrefix)), size, file.path());
  const uint64_t data = kSafetensorsPrefix + header;
  Tensors tensors;
  for (const SafetensorsEntry& entry :
       parse_safetensors_header(file.text(kSafetensorsPrefix, header), size - data, file.path())) {
    if (entry.dtype != "F32") refuse_damaged(folder, fmt::format("tensor '{}' is {}", entry.name, entry.dtype));
    check_safetensors_bytes(entry, sizeof(float), file.path());
    at::Tensor tensor = at::empty(entry.sizes, at::kFloat);
    std::memcpy(tensor.mutable_data_ptr(), file.bytes().data() + data + entry.begin, entry.end - entry.begin);
    tensors.emplace(entry.name, std::move(tensor));
  }
  return tensors;
}

void take(const Tensors& tensors, const std::string& name, at::Tensor& target, const fs::path& folder) {
  const auto found = tensors.find(name);
  if (found == tensors.end() || found->second.sizes() != target.sizes())
    refuse_damaged(folder, fmt::format("no tensor '{}' of {} elements", name, target.numel()));
  target.copy_(found->second);
}

}  // namespace

std::string model_fingerprint(model::CausalLm& model, const AdamW& optimizer, bool adapters_only) {
  const model::ModelConfig& config = model.config();
  std::string text = fmt::format("{} {} {} {} {}", model::architecture_name(config.architecture), config.vocabulary,
                                 config.hidden, config.layers, c10::toString(model.options().dtype().toScalarType()));
  for (const model::CausalLm::Parameter& parameter : optimizer.parameters())
    text += fmt::format("\n{} ({})", parameter.name, fmt::join(parameter.tensor->sizes(), ","));
  if (adapters_only) text += model::weights_fingerprint(model);
  return fmt::format("{:016x}", hash64(text));
}

void write_checkpoint(const fs::path& folder, const TrainState& state, const std::string& fingerprint, AdamW& optimizer,
                      const std::vector<at::Tensor>& reference, Moments moments) {
  const fs::path unfinished = folder.parent_path() / ("." + folder.filename().string() + ".unfinished");
  std::error_code ignored, error;
  fs::remove_all(unfinished, ignored);
  fs::create_directories(unfinished, error);
  if (error) throw RuntimeFailure(fmt::format("{}: cannot be made: {}", unfinished.string(), error.message()));
  try {
    std::vector<std::pair<std::string, at::Tensor>> tensors = {{"masters", optimizer.flat_masters()}};
    if (moments == Moments::kKept) {
      tensors.emplace_back("first", optimizer.flat_first());
      tensors.emplace_back("second", optimizer.flat_second());
    }
    for (std::size_t i = 0; i < reference.size(); ++i)
      tensors.emplace_back("reference." + optimizer.parameters()[i].name, reference[i].to(at::kFloat));
    model::write_safetensors(unfinished / kTensors, tensors);
    record::write_checkpoint_state(unfinished / kState, {.stage = state.done.stage,
                                                         .step = state.done.step,
                                                         .steps_done = state.steps_done,
                                                         .event_lines = state.event_lines,
                                                         .optimizer_steps = optimizer.steps(),
                                                         .validation = state.validation,
                                                         .evidence = state.evidence,
                                                         .model = fingerprint,
                                                         .tensors = hash_of(MappedFile(unfinished / kTensors))});
    fs::remove_all(folder, ignored);  // of an earlier run of this step, whose later events were taken back
    fs::rename(unfinished, folder, error);
    if (error) throw RuntimeFailure(fmt::format("{}: cannot be put in place: {}", folder.string(), error.message()));
    sync_directory(folder.parent_path());
  } catch (...) {
    fs::remove_all(unfinished, ignored);
    throw;
  }
}

TrainState read_checkpoint(const fs::path& folder, const std::string& fingerprint, AdamW& optimizer,
                           std::vector<at::Tensor>& reference, Moments moments) {
  if (!fs::exists(folder / kState) || !fs::exists(folder / kTensors))
    refuse_damaged(folder, fmt::format("{} or {} is missing", kState, kTensors));
  const record::CheckpointState stored = record::read_checkpoint_state(folder / kState);
  if (stored.model != fingerprint)
    throw UsageError(fmt::format(
        "{}: the checkpoint is of another model: its shape, its type, what is trained of it or the weights below "
        "its adapters differ; "
        "resume with the recipe it was made with",
        folder.string()));
  const TrainState state = {
      {stored.stage, stored.step}, stored.steps_done, stored.event_lines, stored.validation, stored.evidence};
  const MappedFile file(folder / kTensors);
  if (hash_of(file) != stored.tensors)
    refuse_damaged(folder, fmt::format("{} is not the file that {} describes", kTensors, kState));
  const at::NoGradGuard no_gradients;
  const Tensors tensors = read_tensors(file, folder);
  take(tensors, "masters", optimizer.flat_masters(), folder);
  if (moments == Moments::kKept) {
    take(tensors, "first", optimizer.flat_first(), folder);
    take(tensors, "second", optimizer.flat_second(), folder);
  }
  reference.clear();
  for (const model::CausalLm::Parameter& parameter : optimizer.parameters()) {
    const auto found = tensors.find("reference." + parameter.name);
    if (found != tensors.end()) reference.push_back(found->second.to(parameter.tensor->options()));
  }
  optimizer.set_steps(stored.optimizer_steps);
  optimizer.write_parameters();
  return state;
}

std::string checkpoint_hash(const fs::path& folder) { return record::read_checkpoint_state(folder / kState).tensors; }

std::optional<fs::path> newest_checkpoint(const fs::path& checkpoints) {
  const std::vector<fs::path> all = checkpoints_in(checkpoints);
  if (all.empty()) return std::nullopt;
  return all.back();
}

void retain_checkpoints(const fs::path& checkpoints, int64_t keep) {
  std::vector<fs::path> all = checkpoints_in(checkpoints);
  std::error_code ignored;
  if (!fs::exists(checkpoints)) return;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    if (entry.path().extension() == ".unfinished" || entry.path().extension() == ".removed")
      fs::remove_all(entry.path(), ignored);
  }
  while (std::ssize(all) > keep) {  // out of sight first: a half-removed checkpoint must not look like one
    const fs::path hidden = checkpoints / ("." + all.front().filename().string() + ".removed");
    fs::rename(all.front(), hidden, ignored);
    if (!ignored) fs::remove_all(hidden, ignored);
    all.erase(all.begin());
  }
}

}  // namespace faultline::train
