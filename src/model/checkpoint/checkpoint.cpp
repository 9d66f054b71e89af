#include "model/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "model/checkpoint/table_checkpoint.h"

namespace faultline::model {
namespace {

namespace fs = std::filesystem;

bool holds(const fs::path& folder, std::string_view prefix, std::string_view ending) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(ending)) return true;
  }
  return false;
}

// A checkpoint of verl, global_step_20 or its actor: shards of FSDP as pickles and, where save_contents asked for
// hf_model, the whole model beside them.
fs::path model_in_verl_checkpoint(const fs::path& folder) {
  const fs::path actor = fs::is_directory(folder / "actor") ? folder / "actor" : folder;
  if (!holds(actor, "model_world_size_", ".pt")) return folder;
  if (holds(actor / "huggingface", "model", ".safetensors")) return actor / "huggingface";
  fs::path merged = fs::weakly_canonical(folder);
  merged += "-merged";
  throw UsageError(fmt::format(
      "{}: a checkpoint of verl, whose FSDP shards are pickles, which can run code and are never loaded; merge them:\n"
      "  python -m verl.model_merger merge --backend fsdp --local_dir {} --target_dir {}\n"
      "then give {} (or train with actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model])",
      folder.string(), actor.string(), merged.string(), merged.string()));
}

}  // namespace

std::vector<std::string> TableCheckpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, weight] : weights_) names.push_back(name);
  return names;
}

const StoredWeight& TableCheckpoint::find(const std::string& name) const {
  const auto found = weights_.find(name);
  if (found != weights_.end()) return found->second;
  throw UsageError(fmt::format("{}: no tensor '{}'{}", path_.string(), name, did_you_mean(name, names())));
}

at::Tensor TableCheckpoint::read(const std::string& name, at::ScalarType dtype) const {
  const StoredWeight& weight = find(name);
  check_unchanged(weight.file);
  at::Tensor tensor = read_rows(weight.rows, weight.sizes, dtype,
                                fmt::format("{}: tensor '{}'", file_path(weight.file).string(), name));
  forget(weight.file, weight.rows.bytes);
  return tensor;
}

void TableCheckpoint::missing(const TensorPlace& place, const std::string& stored_name) const {
  throw UsageError(fmt::format("{}: the tensor '{}' of shape ({}) is missing; a {} of this configuration needs it",
                               path_.string(), stored_name, fmt::join(place.sizes, ", "),
                               architecture_name(config_.architecture)));
}

void TableCheckpoint::refuse_unknown(const std::set<std::string>& stored, const std::set<std::string>& used) const {
  for (const std::string& name : stored) {
    if (used.contains(name) || is_redundant(name, config_)) continue;
    throw UsageError(fmt::format("{}: holds the tensor '{}', which a {} of this configuration does not have",
                                 path_.string(), name, architecture_name(config_.architecture)));
  }
}

void TableCheckpoint::check_sizes(const std::string& stored_name, const std::vector<int64_t>& found,
                                  const std::vector<int64_t>& wanted) const {
  if (found == wanted) return;
  throw UsageError(fmt::format("{}: tensor '{}' has the shape ({}); the configuration wants ({})", path_.string(),
                               stored_name, fmt::join(found, ", "), fmt::join(wanted, ", ")));
}

fs::path resolve_model(const std::string& model) {
  if (model != "default") return model;
  if (const char* chosen = std::getenv("FAULTLINE_MODEL"); chosen != nullptr && *chosen != '\0') return chosen;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path folder = cache != nullptr && *cache != '\0'
                                           ? std::filesystem::path(cache)
                                           : std::filesystem::path(home ? home : "") / ".cache";
  return folder / "faultline" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model) {
  const std::filesystem::path path = resolve_model(model);
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(status)) {
    throw UsageError(
        model == "default"
            ? fmt::format("the default model, {}, is not there; run ./dev setup, or python -m faultline_model where "
                          "pip installed us, or set FAULTLINE_MODEL",
                          path.string())
            : fmt::format("{}: no such model; give a Hugging Face folder, a .gguf file or 'default'", path.string()));
  }
  if (std::filesystem::is_directory(status)) return open_safetensors_folder(model_in_verl_checkpoint(path));
  if (path.extension() == ".safetensors") {
    throw UsageError(fmt::format("{}: give the folder, which holds config.json too", path.string()));
  }
  return open_gguf_checkpoint(path);
}

}  // namespace faultline::model
