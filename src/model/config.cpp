// Fields that a file leaves out get the default of transformers' configuration class, where that default is one number
// for the family; otherwise they are required.
#include "model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace faultline::model {
namespace {

constexpr std::array<std::string_view, 8> kArchitectures = {"llama",     "qwen2",   "qwen3",   "qwen2_moe",
                                                            "qwen3_moe", "smollm3", "granite", "mistral"};
constexpr std::string_view kPhi3 = "phi3";

// A JSON object whose fields are read by name; null counts as absent.
class Fields {
 public:
  Fields(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) throw UsageError(fmt::format("{}: wanted a JSON object", place_));
  }

  [[noreturn]] void refuse(std::string_view field, const std::string& complaint) const {
    throw UsageError(fmt::format("{}: {}: {}", place_, field, complaint));
  }
  const Json* find(std::string_view field) const {
    const auto found = json_.find(field);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t integer(std::string_view field, std::optional<int64_t> absent = std::nullopt) const {
    const Json* value = find(field);
    if (value == nullptr && absent) return *absent;
    if (value == nullptr) refuse(field, "is missing");
    if (!value->is_number_integer() || *value > Json(int64_t{1} << 62)) refuse(field, "wanted an integer");
    return value->get<int64_t>();
  }
  double number(std::string_view field, std::optional<double> absent = std::nullopt) const {
    const Json* value = find(field);
    if (value == nullptr && absent) return *absent;
    if (value == nullptr) refuse(field, "is missing");
    if (!value->is_number()) refuse(field, "wanted a number");
    return value->get<double>();
  }
  bool has(std::string_view field) const { return json_.contains(field); }  // null counts
  bool truth(std::string_view field, bool absent) const {
    const Json* value = find(field);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) refuse(field, "wanted true or false");
    return value->get<bool>();
  }
  std::string text(std::string_view field, std::string_view absent) const {
    const Json* value = find(field);
    if (value == nullptr) return std::string(absent);
    if (!value->is_string()) refuse(field, "wanted a text");
    return value->get<std::string>();
  }
  std::vector<int64_t> integers(std::string_view field) const {  // one, several, or none
    const Json* value = find(field);
    if (value == nullptr) return {};
    const Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& item : list) {
      const bool fine = item.is_number_integer() && item >= 0 && item < (int64_t{1} << 31);
      if (!fine) refuse(field, "wanted integers from 0 to 2^31 - 1");
    }
    return list.get<std::vector<int64_t>>();
  }

 private:
  const Json& json_;
  std::string place_;
};

Architecture read_architecture(const Fields& fields) {
  const std::string name = fields.text("model_type", "");
  if (name == kPhi3) return Architecture::kMistral;
  const auto found = std::find(kArchitectures.begin(), kArchitectures.end(), name);
  if (found != kArchitectures.end()) return static_cast<Architecture>(found - kArchitectures.begin());
  std::vector<std::string> known(kArchitectures.begin(), kArchitectures.end());
  known.emplace_back(kPhi3);
  fields.refuse(
      "model_type",
      fmt::format("the architecture '{}' is not supported ({}){}; run it in transformers, where faultline.plan "
                  "and faultline.diagnose take any model",
                  name, fmt::join(known, ", "), did_you_mean(name, known)));
}

// Sequences as long as the window attend to all that came before. 0: no window.
int64_t read_window(const Fields& fields, Architecture architecture, std::string_view type) {
  const bool always = architecture == Architecture::kMistral;
  bool slides = always || fields.truth("use_sliding_window", false);
  if (const Json* types = fields.find("layer_types")) {
    const auto known = [](const Json& one) { return one == "full_attention" || one == "sliding_attention"; };
    if (!types->is_array() || !std::all_of(types->begin(), types->end(), known))
      fields.refuse("layer_types", "only full_attention and sliding_attention are supported");
    slides =
        std::any_of(types->begin(), types->end(), [](const Json& one) { return one == "sliding_attention"; }) || always;
  }
  if (!slides || (fields.has("sliding_window") && fields.find("sliding_window") == nullptr)) return 0;
  const int64_t window = fields.integer("sliding_window", type == kPhi3 ? 0 : 4096);
  if (window < 0) fields.refuse("sliding_window", "wanted a positive integer, or null");
  return window;
}

// What would change the arithmetic, and we do not have.
void refuse_unsupported(const Fields& fields) {
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu") fields.refuse("hidden_act", fmt::format("'{}' is not supported, only silu", activation));
  if (fields.number("partial_rotary_factor", 1) != 1) fields.refuse("partial_rotary_factor", "only 1 is supported");
  if (fields.find("quantization_config") != nullptr) {
    fields.refuse("quantization_config",
                  "quantised folders are not supported; save the weights as bf16, or take a GGUF");
  }
}

RopeScaling read_scaling(const Fields& rope, int64_t context) {
  RopeScaling scaling;
  const std::string kind = rope.text("rope_type", rope.text("type", "default"));
  if (kind == "default" || kind == "none") return scaling;
  if (kind == "dynamic") {  // nothing is scaled in sequences up to max_position_embeddings
    scaling.kind = RopeScaling::Kind::kDynamic;
    scaling.factor = rope.number("factor");
    return scaling;
  }
  if (kind != "linear" && kind != "llama3" && kind != "yarn") {
    rope.refuse("rope_type",
                fmt::format("the scaling '{}' is not supported (default, linear, dynamic, llama3, yarn)", kind));
  }
  scaling.kind = kind == "linear"   ? RopeScaling::Kind::kLinear
                 : kind == "llama3" ? RopeScaling::Kind::kLlama3
                                    : RopeScaling::Kind::kYarn;
  scaling.factor = rope.number("factor");
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    const auto grown = [&](double by) { return scaling.factor <= 1 ? 1 : 0.1 * by * std::log(scaling.factor) + 1; };
    const double own = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
    scaling.attention_factor =
        rope.number("attention_factor", own != 0 && all != 0 ? grown(own) / grown(all) : grown(1));
    scaling.low_frequency_factor = rope.number("beta_slow", 1);
    scaling.high_frequency_factor = rope.number("beta_fast", 32);
    scaling.whole_dimensions = rope.truth("truncate", true);
    scaling.original_context = rope.integer("original_max_position_embeddings", context);
  }
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    scaling.low_frequency_factor = rope.number("low_freq_factor");
    scaling.high_frequency_factor = rope.number("high_freq_factor");
    scaling.original_context = rope.integer("original_max_position_embeddings");
  }
  return scaling;
}

// transformers 5 writes rope_parameters, older ones rope_theta and rope_scaling.
void read_rope(const Fields& fields, const std::string& file, ModelConfig& config) {
  config.rope_theta = fields.number("rope_theta", config.architecture == Architecture::kSmolLm3 ? 2000000 : 10000);
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    const Json* json = fields.find(field);
    if (json == nullptr) continue;
    const Fields rope(*json, fmt::format("{}: {}", file, field));
    if (std::any_of(json->begin(), json->end(), [](const Json& value) { return value.is_object(); })) {
      fields.refuse(field, "parameters that differ by layer are not supported");
    }
    if (rope.number("partial_rotary_factor", 1) != 1) rope.refuse("partial_rotary_factor", "only 1 is supported");
    config.rope_theta = rope.number("rope_theta", config.rope_theta);
    config.rope_scaling = read_scaling(rope, config.context);
    return;
  }
}

MoeConfig read_moe(const Fields& fields, Architecture architecture) {
  MoeConfig moe;
  moe.experts =
      fields.find("num_experts") != nullptr ? fields.integer("num_experts") : fields.integer("num_local_experts");
  moe.experts_per_token = fields.integer("num_experts_per_tok");
  moe.expert_size = fields.integer("moe_intermediate_size");
  if (architecture == Architecture::kQwen2Moe) {
    moe.shared_expert_size = fields.integer("shared_expert_intermediate_size");
  }
  moe.normalise_weights = fields.truth("norm_topk_prob", false);
  moe.sparse_step = fields.integer("decoder_sparse_step", 1);
  moe.dense_layers = fields.integers("mlp_only_layers");
  return moe;
}

Json rope_json(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  Json rope = {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  if (scaling.kind == RopeScaling::Kind::kNone) return rope;
  rope["rope_type"] = scaling.kind == RopeScaling::Kind::kLinear    ? "linear"
                      : scaling.kind == RopeScaling::Kind::kDynamic ? "dynamic"
                      : scaling.kind == RopeScaling::Kind::kLlama3  ? "llama3"
                                                                    : "yarn";
  rope["factor"] = scaling.factor;
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    rope["beta_slow"] = scaling.low_frequency_factor;
    rope["beta_fast"] = scaling.high_frequency_factor;
    rope["attention_factor"] = scaling.attention_factor;
    rope["truncate"] = scaling.whole_dimensions;
    rope["original_max_position_embeddings"] = scaling.original_context;
  }
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    rope["low_freq_factor"] = scaling.low_frequency_factor;
    rope["high_freq_factor"] = scaling.high_frequency_factor;
    rope["original_max_position_embeddings"] = scaling.original_context;
  }
  return rope;
}

}  // namespace

std::string_view architecture_name(Architecture architecture) {
  return kArchitectures[static_cast<std::size_t>(architecture)];
}

bool ModelConfig::is_sparse_layer(int64_t layer) const {
  const auto& dense = moe.dense_layers;
  return moe.experts > 0 && (layer + 1) % moe.sparse_step == 0 &&
         std::find(dense.begin(), dense.end(), layer) == dense.end();
}

bool ModelConfig::is_rotated_layer(int64_t layer) const {
  return !std::binary_search(unrotated_layers.begin(), unrotated_layers.end(), layer);
}

namespace {

// no_rope_layers: 1 for each layer that rotates; absent: every fourth does not.
std::vector<int64_t> read_unrotated(const Fields& fields, int64_t layers) {
  std::vector<int64_t> unrotated;
  const std::vector<int64_t> rotates = fields.integers("no_rope_layers");
  const int64_t interval = fields.integer("no_rope_layer_interval", 4);
  if (interval < 1) fields.refuse("no_rope_layer_interval", "must be positive");
  if (!rotates.empty() && std::ssize(rotates) < layers)
    fields.refuse("no_rope_layers", fmt::format("has {} entries for {} layers", rotates.size(), layers));
  for (int64_t layer = 0; layer < std::min<int64_t>(layers, 4096); ++layer) {
    const bool rotated = rotates.empty() ? (layer + 1) % interval != 0 : rotates[static_cast<std::size_t>(layer)] != 0;
    if (!rotated) unrotated.push_back(layer);
  }
  return unrotated;
}

void read_multipliers(const Fields& fields, ModelConfig& config) {
  config.embedding_multiplier = fields.number("embedding_multiplier", 1);
  config.residual_multiplier = fields.number("residual_multiplier", 1);
  config.attention_multiplier = fields.number("attention_multiplier", 1);
  config.logits_divisor = fields.number("logits_scaling", 1);
  for (const double value :
       {config.embedding_multiplier, config.residual_multiplier, config.attention_multiplier, config.logits_divisor})
    if (!(std::isfinite(value) && value > 0)) fields.refuse("embedding_multiplier", "multipliers must be positive");
}

}  // namespace

ModelConfig read_config(const Json& json, const std::string& file) {
  const Fields fields(json, file);
  ModelConfig config;
  config.architecture = read_architecture(fields);
  refuse_unsupported(fields);
  const std::string type = fields.text("model_type", "");
  const bool smollm3 = config.architecture == Architecture::kSmolLm3;
  const bool mistral = config.architecture == Architecture::kMistral;
  const bool llama =
      config.architecture == Architecture::kLlama || config.architecture == Architecture::kGranite || type == kPhi3;
  const bool qwen2 = config.architecture == Architecture::kQwen2 || config.architecture == Architecture::kQwen2Moe;
  config.vocabulary = fields.integer("vocab_size");
  config.hidden = fields.integer("hidden_size");
  config.layers = fields.integer("num_hidden_layers");
  config.heads = fields.integer("num_attention_heads");
  config.kv_heads = llama     ? fields.integer("num_key_value_heads", config.heads)
                    : mistral ? fields.integer("num_key_value_heads", 8)
                    : smollm3 ? fields.integer("num_key_value_heads", 4)
                              : fields.integer("num_key_value_heads");
  config.query_key_norm = config.architecture == Architecture::kQwen3 || config.architecture == Architecture::kQwen3Moe;
  const int64_t even_share = config.heads > 0 ? config.hidden / config.heads : 0;
  config.head_size = fields.integer("head_dim", config.query_key_norm ? 128 : even_share);
  config.inner = fields.integer("intermediate_size");
  config.context = fields.integer("max_position_embeddings");
  read_rope(fields, file, config);
  config.exact_context = config.rope_scaling.kind == RopeScaling::Kind::kDynamic ? config.context : 0;
  if (const int64_t window = read_window(fields, config.architecture, type); window > 0)
    config.exact_context = config.context = std::min(config.context, window);
  if (smollm3) config.unrotated_layers = read_unrotated(fields, config.layers);
  if (config.architecture == Architecture::kGranite) read_multipliers(fields, config);
  config.norm_epsilon = fields.number("rms_norm_eps", type == kPhi3 ? 1e-5 : 1e-6);
  config.tied_output = fields.truth("tie_word_embeddings", smollm3);
  config.mlp_bias = !qwen2 && !config.query_key_norm && !mistral && fields.truth("mlp_bias", false);
  config.attention_bias = qwen2 ? fields.truth("qkv_bias", true) : !mistral && fields.truth("attention_bias", false);
  config.output_bias = !qwen2 && config.attention_bias;
  if (config.architecture == Architecture::kQwen2Moe || config.architecture == Architecture::kQwen3Moe) {
    config.moe = read_moe(fields, config.architecture);
  }
  config.end_tokens = fields.integers("eos_token_id");
  check_config(config, file);
  return config;
}

void check_config(const ModelConfig& config, const std::string& file) {
  const auto require = [&](bool fine, const char* sentence) {
    if (!fine) throw UsageError(fmt::format("{}: {}", file, sentence));
  };
  constexpr int64_t kLarge = int64_t{1} << 24;  // any two of them, times a few thousand layers, stay below 2^63
  const auto sized = [&](int64_t value) { return value >= 1 && value <= kLarge; };
  require(sized(config.vocabulary) && sized(config.hidden), "vocab_size and hidden_size must be from 1 to 2^24");
  require(config.layers >= 1 && config.layers <= 4096, "num_hidden_layers must be from 1 to 4096");
  require(sized(config.heads) && sized(config.kv_heads) && config.heads <= 65536 && config.heads % config.kv_heads == 0,
          "num_attention_heads must be from 1 to 65536 and a multiple of num_key_value_heads");
  require(config.head_size >= 2 && config.head_size <= 65536 && config.head_size % 2 == 0,
          "head_dim must be even, from 2 to 65536");
  require(sized(config.inner), "intermediate_size must be from 1 to 2^24");
  require(config.context >= 1 && config.context <= (int64_t{1} << 31),
          "max_position_embeddings must be from 1 to 2^31");
  require(std::isfinite(config.norm_epsilon) && config.norm_epsilon > 0, "rms_norm_eps must be positive");
  require(std::isfinite(config.rope_theta) && config.rope_theta > 0, "rope_theta must be positive");
  const RopeScaling& rope = config.rope_scaling;
  require(std::isfinite(rope.factor) && rope.factor > 0 && rope.low_frequency_factor > 0 && rope.original_context > 0 &&
              std::isfinite(rope.high_frequency_factor) && rope.high_frequency_factor > rope.low_frequency_factor &&
              std::isfinite(rope.attention_factor) && rope.attention_factor > 0,
          "the rope scaling's numbers must be positive, and high_freq_factor (beta_fast) greater than low_freq_factor "
          "(beta_slow)");
  require(config.rope_scaling.kind != RopeScaling::Kind::kYarn || config.rope_theta > 1,
          "yarn needs a rope_theta greater than 1");
  const MoeConfig& moe = config.moe;
  const bool mixture = config.architecture == Architecture::kQwen2Moe || config.architecture == Architecture::kQwen3Moe;
  if (!mixture) return;
  require(moe.experts >= 1 && moe.experts <= (int64_t{1} << 18) / config.layers,
          "num_experts must be at least 1, and at most 2^18 in all layers");
  require(moe.experts_per_token >= 1 && moe.experts_per_token <= moe.experts,
          "num_experts_per_tok must be from 1 to num_experts");
  require(sized(moe.expert_size), "moe_intermediate_size must be from 1 to 2^24");
  require(moe.shared_expert_size >= 0 && moe.shared_expert_size <= kLarge,
          "shared_expert_intermediate_size must be from 0 to 2^24");
  require(moe.sparse_step >= 1, "decoder_sparse_step must be positive");
}

Json to_config_json(const ModelConfig& config) {
  constexpr std::array<const char*, kArchitectures.size()> kClasses = {
      "LlamaForCausalLM",    "Qwen2ForCausalLM",   "Qwen3ForCausalLM",   "Qwen2MoeForCausalLM",
      "Qwen3MoeForCausalLM", "SmolLM3ForCausalLM", "GraniteForCausalLM", "MistralForCausalLM"};
  Json json = {{"architectures", {kClasses[static_cast<std::size_t>(config.architecture)]}},
               {"model_type", architecture_name(config.architecture)},
               {"vocab_size", config.vocabulary},
               {"hidden_size", config.hidden},
               {"num_hidden_layers", config.layers},
               {"num_attention_heads", config.heads},
               {"num_key_value_heads", config.kv_heads},
               {"head_dim", config.head_size},
               {"intermediate_size", config.inner},
               {"max_position_embeddings", config.context},
               {"rope_theta", config.rope_theta},
               {"rope_parameters", rope_json(config)},
               {"rms_norm_eps", config.norm_epsilon},
               {"tie_word_embeddings", config.tied_output},
               {"hidden_act", "silu"}};
  if (config.rope_scaling.kind != RopeScaling::Kind::kNone) json["rope_scaling"] = rope_json(config);
  const bool qwen2 = config.architecture == Architecture::kQwen2 || config.architecture == Architecture::kQwen2Moe;
  json[qwen2 ? "qkv_bias" : "attention_bias"] = config.attention_bias;
  if (config.mlp_bias) json["mlp_bias"] = true;
  const bool window = config.exact_context > 0 && config.rope_scaling.kind != RopeScaling::Kind::kDynamic;
  if (window || config.architecture == Architecture::kMistral)
    json["sliding_window"] = window ? Json(config.exact_context) : Json();
  if (window && config.architecture != Architecture::kMistral) json["use_sliding_window"] = true;
  if (config.architecture == Architecture::kSmolLm3) {
    json["no_rope_layers"] = Json::array();
    for (int64_t layer = 0; layer < config.layers; ++layer)
      json["no_rope_layers"].push_back(config.is_rotated_layer(layer) ? 1 : 0);
  }
  if (config.architecture == Architecture::kGranite) {
    json.update({{"embedding_multiplier", config.embedding_multiplier},
                 {"residual_multiplier", config.residual_multiplier},
                 {"attention_multiplier", config.attention_multiplier},
                 {"logits_scaling", config.logits_divisor}});
  }
  if (!config.end_tokens.empty()) {
    json["eos_token_id"] = config.end_tokens.size() == 1 ? Json(config.end_tokens.front()) : Json(config.end_tokens);
  }
  const MoeConfig& moe = config.moe;
  if (moe.experts > 0) {
    json.update({{"num_experts", moe.experts},
                 {"num_experts_per_tok", moe.experts_per_token},
                 {"moe_intermediate_size", moe.expert_size},
                 {"norm_topk_prob", moe.normalise_weights},
                 {"decoder_sparse_step", moe.sparse_step},
                 {"mlp_only_layers", moe.dense_layers}});
    if (moe.shared_expert_size > 0) json["shared_expert_intermediate_size"] = moe.shared_expert_size;
  }
  return json;
}

}  // namespace faultline::model
