// Fields that a file leaves out get the default of transformers' configuration class, where that default is one number
// for the family; otherwise they are required.
#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace faultline::model {
namespace {

constexpr std::array<std::string_view, 5> kArchitectures = {"llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"};

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
  const auto found = std::find(kArchitectures.begin(), kArchitectures.end(), name);
  if (found == kArchitectures.end()) {
    const std::vector<std::string> known(kArchitectures.begin(), kArchitectures.end());
    fields.refuse("model_type", fmt::format("the architecture '{}' is not supported (llama, qwen2, qwen3, qwen2_moe, "
                                            "qwen3_moe){}",
                                            name, did_you_mean(name, known)));
  }
  return static_cast<Architecture>(found - kArchitectures.begin());
}

// What would change the arithmetic, and we do not have.
void refuse_unsupported(const Fields& fields) {
  if (fields.truth("use_sliding_window", false))
    fields.refuse("use_sliding_window", "sliding windows are not supported");
  if (const Json* types = fields.find("layer_types")) {
    const bool full = types->is_array() && std::all_of(types->begin(), types->end(),
                                                       [](const Json& type) { return type == "full_attention"; });
    if (!full) fields.refuse("layer_types", "only full_attention is supported");
  }
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu") fields.refuse("hidden_act", fmt::format("'{}' is not supported, only silu", activation));
  if (fields.truth("mlp_bias", false)) fields.refuse("mlp_bias", "biases in the mlp are not supported");
  if (fields.number("partial_rotary_factor", 1) != 1) fields.refuse("partial_rotary_factor", "only 1 is supported");
  if (fields.find("quantization_config") != nullptr) {
    fields.refuse("quantization_config",
                  "quantised folders are not supported; save the weights as bf16, or take a GGUF");
  }
}

RopeScaling read_scaling(const Fields& rope) {
  RopeScaling scaling;
  const std::string kind = rope.text("rope_type", rope.text("type", "default"));
  if (kind == "default" || kind == "none") return scaling;
  if (kind != "linear" && kind != "llama3") {
    rope.refuse("rope_type", fmt::format("the scaling '{}' is not supported (default, linear, llama3)", kind));
  }
  scaling.kind = kind == "linear" ? RopeScaling::Kind::kLinear : RopeScaling::Kind::kLlama3;
  scaling.factor = rope.number("factor");
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    scaling.low_frequency_factor = rope.number("low_freq_factor");
    scaling.high_frequency_factor = rope.number("high_freq_factor");
    scaling.original_context = rope.integer("original_max_position_embeddings");
  }
  return scaling;
}

// transformers 5 writes rope_parameters, older ones rope_theta and rope_scaling.
void read_rope(const Fields& fields, const std::string& file, ModelConfig& config) {
  config.rope_theta = fields.number("rope_theta", 10000);
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    const Json* json = fields.find(field);
    if (json == nullptr) continue;
    const Fields rope(*json, fmt::format("{}: {}", file, field));
    if (std::any_of(json->begin(), json->end(), [](const Json& value) { return value.is_object(); })) {
      fields.refuse(field, "parameters that differ by layer are not supported");
    }
    if (rope.number("partial_rotary_factor", 1) != 1) rope.refuse("partial_rotary_factor", "only 1 is supported");
    config.rope_theta = rope.number("rope_theta", config.rope_theta);
    config.rope_scaling = read_scaling(rope);
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
  rope["rope_type"] = scaling.kind == RopeScaling::Kind::kLinear ? "linear" : "llama3";
  rope["factor"] = scaling.factor;
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

ModelConfig read_config(const Json& json, const std::string& file) {
  const Fields fields(json, file);
  ModelConfig config;
  config.architecture = read_architecture(fields);
  refuse_unsupported(fields);
  const bool llama = config.architecture == Architecture::kLlama;
  const bool qwen2 = config.architecture == Architecture::kQwen2 || config.architecture == Architecture::kQwen2Moe;
  config.vocabulary = fields.integer("vocab_size");
  config.hidden = fields.integer("hidden_size");
  config.layers = fields.integer("num_hidden_layers");
  config.heads = fields.integer("num_attention_heads");
  config.kv_heads = llama ? fields.integer("num_key_value_heads", config.heads) : fields.integer("num_key_value_heads");
  config.query_key_norm = !llama && !qwen2;
  const int64_t even_share = config.heads > 0 ? config.hidden / config.heads : 0;
  config.head_size = fields.integer("head_dim", config.query_key_norm ? 128 : even_share);
  config.inner = fields.integer("intermediate_size");
  config.context = fields.integer("max_position_embeddings");
  read_rope(fields, file, config);
  config.norm_epsilon = fields.number("rms_norm_eps", 1e-6);
  config.tied_output = fields.truth("tie_word_embeddings", false);
  config.attention_bias = qwen2 ? fields.truth("qkv_bias", true) : fields.truth("attention_bias", false);
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
              std::isfinite(rope.high_frequency_factor) && rope.high_frequency_factor > rope.low_frequency_factor,
          "the rope scaling's numbers must be positive, and high_freq_factor greater than low_freq_factor");
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
  constexpr std::array<const char*, 5> kClasses = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                                                   "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"};
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
