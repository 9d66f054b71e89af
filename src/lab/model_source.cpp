#include "lab/model_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "base/error.h"
#include "base/text.h"
#include "lab/training_run.h"
#include "model/checkpoint/checkpoint.h"
#include "model/memory.h"
#include "recipe/recipe.h"
#include "record/manifest.h"
#include "train/checkpoint.h"

namespace faultline::lab {
namespace {

namespace fs = std::filesystem;

// --- random weights --------------------------------------------------------------------------------------------------
constexpr std::string_view kRandom = "random:";
constexpr uint64_t kRandomSeed = 0;

// As their config.json says.
Json qwen2(int64_t hidden, int64_t inner, int64_t layers, int64_t heads, int64_t kv_heads, int64_t vocabulary,
           bool tied) {
  return {{"model_type", "qwen2"},
          {"hidden_act", "silu"},
          {"hidden_size", hidden},
          {"intermediate_size", inner},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},
          {"vocab_size", vocabulary},
          {"max_position_embeddings", 32768},
          {"rope_theta", 1e6},
          {"rms_norm_eps", 1e-6},
          {"tie_word_embeddings", tied}};
}

const std::map<std::string, Json>& shapes() {
  static const std::map<std::string, Json> all = {
      {"qwen2.5-0.5b", qwen2(896, 4864, 24, 14, 2, 151936, true)},
      {"qwen2.5-1.5b", qwen2(1536, 8960, 28, 12, 2, 151936, true)},
      {"qwen2.5-7b", qwen2(3584, 18944, 28, 28, 4, 152064, false)},
      {"qwen2.5-14b", qwen2(5120, 13824, 48, 40, 8, 152064, false)},
      {"qwen2.5-32b", qwen2(5120, 27648, 64, 40, 8, 152064, false)},
  };
  return all;
}

model::ModelConfig named_shape(const std::string& name) {
  if (const auto found = shapes().find(name); found != shapes().end()) return model::read_config(found->second, name);
  std::vector<std::string> known;
  for (const auto& [shape, json] : shapes()) known.push_back(shape);
  throw UsageError(
      fmt::format("random:{}: no shape is called that, and it is no folder with a config.json{}; shapes are {}", name,
                  did_you_mean(name, known), fmt::join(known, ", ")));
}

model::ModelConfig random_shape(const std::string& shape) {
  return fs::is_directory(shape) ? model::read_folder_config(shape) : named_shape(shape);
}

LoadedModel made_of_random_weights(const std::string& shape, const LoadOptions& options) {
  const model::ModelConfig config = random_shape(shape);
  const int64_t needed = model::weight_bytes(config, options.dtype), there = model::available_memory(options.device);
  if (needed > there)
    throw UsageError(fmt::format("random:{}: its weights take {}, and {} are available on {}", shape,
                                 model::human_bytes(needed), model::human_bytes(there), options.device.str()));
  const fs::path origin = model::resolve_model(fs::is_directory(shape) ? shape : "default");
  LoadedModel loaded{origin, nullptr, load_tokenizer(origin)};
  refuse_other_tokenizer(loaded, config);
  loaded.model = std::make_unique<model::CausalLm>(config, kRandomSeed, options.dtype, options.device);
  return loaded;
}

// --- checkpoints of our own trainer ----------------------------------------------------------------------------------
bool is_trained_checkpoint(const fs::path& folder) {
  return fs::exists(folder / "state.json") && fs::exists(folder / "state.safetensors");
}

// The manifest of the run that made it: what to load, what of it was trained.
Json recipe_of_run(const fs::path& folder) {
  const fs::path manifest = fs::weakly_canonical(folder).parent_path().parent_path() / "manifest.json";
  if (!fs::exists(manifest))
    throw UsageError(
        fmt::format("{}: a checkpoint of a training, and {}, which says what was trained, is not there; give the "
                    "checkpoint where the run made it: RUN/checkpoints/{}",
                    folder.string(), manifest.string(), folder.filename().string()));
  return record::read_manifest(manifest).recipe;
}

void refuse_other_type(const fs::path& folder, const std::string& trained, at::ScalarType wanted) {
  const auto type = trained == "fp32" ? at::kFloat : trained == "fp16" ? at::kHalf : at::kBFloat16;
  if (type != wanted)
    throw UsageError(fmt::format("{}: this policy computed in {}; give --dtype {}", folder.string(), trained, trained));
}

// Which of its checkpoints is meant?
void refuse_whole_run(const fs::path& folder) {
  if (!fs::exists(folder / "manifest.json")) return;
  if (const auto newest = train::newest_checkpoint(folder / "checkpoints"))
    throw UsageError(fmt::format("{}: a whole run; give one of its checkpoints, of which {} is the newest{}",
                                 folder.string(), newest->string(),
                                 fs::exists(folder / "model") ? ", or its model, " + (folder / "model").string() : ""));
}

LoadedModel load_trained_checkpoint(const fs::path& folder, const LoadOptions& options) {
  Json resolved = recipe_of_run(folder);
  refuse_other_type(folder, resolved.value("dtype", "bf16"), options.dtype);
  resolved.erase("dtype");
  const Node recipe = recipe::read_recipe(from_json(resolved), {});
  const train::TrainSpec spec = read_training(recipe).train.spec;
  LoadedModel loaded = load_model(recipe.at("model").as_string(), options);
  const bool adapters = spec.lora.rank > 0;
  train::AdamW optimizer(adapters ? train::add_lora(*loaded.model, spec.lora, spec.seed) : loaded.model->parameters(),
                         {});
  std::vector<at::Tensor> reference;
  train::read_checkpoint(folder, train::model_fingerprint(*loaded.model, optimizer, adapters), optimizer, reference,
                         train::Moments::kLeftOut);
  train::merge_lora(*loaded.model);
  return loaded;
}

}  // namespace

std::optional<LoadedModel> model_from_elsewhere(const std::string& name, const LoadOptions& options) {
  if (name.starts_with(kRandom)) return made_of_random_weights(name.substr(kRandom.size()), options);
  if (is_trained_checkpoint(name)) return load_trained_checkpoint(name, options);
  refuse_whole_run(name);
  return std::nullopt;
}

model::ModelConfig config_of(const std::string& name) {
  if (name.starts_with(kRandom)) return random_shape(name.substr(kRandom.size()));
  return model::open_checkpoint(name)->config();
}

void refuse_other_tokenizer(const LoadedModel& loaded, const model::ModelConfig& config) {
  const int64_t known = loaded.tokenizer.vocabulary_size(), rows = config.vocabulary;
  if (known > rows)
    throw UsageError(
        fmt::format("{}: the tokenizer knows {} tokens, the embedding only {}; they belong to different models",
                    loaded.path.string(), known, rows));
}

}  // namespace faultline::lab
