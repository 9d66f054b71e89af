// The configuration from a GGUF file's keys. What the keys leave open (tied output, biases, which layers are dense, the
// frequency factors of Llama 3) is seen from which tensors there are.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "base/error.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_blocks.h"
#include "model/config.h"

namespace faultline::model {
namespace {

Architecture read_architecture(const GgufFile& file) {
  static const std::map<std::string, Architecture> known = {{"llama", Architecture::kLlama},
                                                            {"qwen2", Architecture::kQwen2},
                                                            {"qwen3", Architecture::kQwen3},
                                                            {"qwen2moe", Architecture::kQwen2Moe},
                                                            {"qwen3moe", Architecture::kQwen3Moe}};
  const std::string& name = file.text("general.architecture");
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  throw UsageError(
      fmt::format("{}: general.architecture: '{}' is not supported (llama, qwen2, qwen3, qwen2moe, qwen3moe); take the "
                  "model's Hugging Face folder, or run it in transformers",
                  file.path().string(), name));
}

// The keys of one architecture: "llama.block_count".
class Keys {
 public:
  explicit Keys(const GgufFile& file) : file_(file), prefix_(file.text("general.architecture") + ".") {}
  bool has(const std::string& key) const { return file_.find(prefix_ + key) != nullptr; }
  int64_t integer(const std::string& key) const { return file_.integer(prefix_ + key); }
  int64_t integer(const std::string& key, int64_t absent) const { return has(key) ? integer(key) : absent; }
  double number(const std::string& key) const { return file_.number(prefix_ + key); }
  double number(const std::string& key, double absent) const { return has(key) ? number(key) : absent; }
  std::string text(const std::string& key, const std::string& absent) const {
    return has(key) ? file_.text(prefix_ + key) : absent;
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& complaint) const {
    throw UsageError(fmt::format("{}: {}{}: {}", file_.path().string(), prefix_, key, complaint));
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

bool has_tensor(const GgufFile& file, const std::string& name) { return file.tensors().contains(name); }

// Llama 3's scaling as it multiplies the wavelength of frequency i; transformers computes the same.
double llama3_factor(const RopeScaling& scaling, double wavelength) {
  const auto original = static_cast<double>(scaling.original_context);
  if (wavelength < original / scaling.high_frequency_factor) return 1;
  if (wavelength > original / scaling.low_frequency_factor) return scaling.factor;
  const double smooth = (original / wavelength - scaling.low_frequency_factor) /
                        (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return 1 / ((1 - smooth) / scaling.factor + smooth);
}

// A GGUF of Llama 3 holds the factors themselves, not the four numbers they came from. All published models use 1, 4
// and 8192 and differ in the factor alone, which is the largest of them: the guess is kept only if it gives them all.
RopeScaling scaling_from_factors(const GgufFile& file, const ModelConfig& config) {
  const GgufTensor& tensor = file.tensors().at("rope_freqs.weight");
  if (tensor.type != kBlockF32 || tensor.sizes != std::vector<int64_t>{config.head_size / 2}) {
    throw UsageError(
        fmt::format("{}: rope_freqs.weight: wanted {} values of F32", file.path().string(), config.head_size / 2));
  }
  std::vector<float> factors(static_cast<std::size_t>(tensor.sizes[0]));
  dequantise(tensor.type, tensor.bytes.data(), tensor.sizes[0], factors.data());
  RopeScaling scaling;
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.factor = static_cast<double>(*std::max_element(factors.begin(), factors.end()));
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double exponent = 2 * static_cast<double>(i) / static_cast<double>(config.head_size);
    const double wavelength = 2 * std::numbers::pi * std::pow(config.rope_theta, exponent);
    const double wanted = llama3_factor(scaling, wavelength);
    if (std::abs(static_cast<double>(factors[i]) - wanted) <= 1e-4 * wanted) continue;
    throw UsageError(fmt::format("{}: rope_freqs.weight[{}] is {}: not Llama 3's scaling, and no other is supported",
                                 file.path().string(), i, factors[i]));
  }
  return scaling;
}

void read_rope(const GgufFile& file, const Keys& keys, ModelConfig& config) {
  config.rope_theta = keys.number("rope.freq_base", 10000);
  if (keys.integer("rope.dimension_count", config.head_size) != config.head_size) {
    keys.refuse("rope.dimension_count", "only the whole head is supported");
  }
  const std::string kind = keys.text("rope.scaling.type", "none");
  if (kind == "linear") {
    config.rope_scaling.kind = RopeScaling::Kind::kLinear;
    config.rope_scaling.factor = keys.number("rope.scaling.factor");
  } else if (kind != "none") {
    keys.refuse("rope.scaling.type", fmt::format("the scaling '{}' is not supported (none, linear)", kind));
  }
  if (has_tensor(file, "rope_freqs.weight")) config.rope_scaling = scaling_from_factors(file, config);
}

MoeConfig read_moe(const GgufFile& file, const Keys& keys, const ModelConfig& config) {
  MoeConfig moe;
  moe.experts = keys.integer("expert_count");
  moe.experts_per_token = keys.integer("expert_used_count");
  moe.expert_size = keys.integer("expert_feed_forward_length");
  if (config.architecture == Architecture::kQwen2Moe) {
    moe.shared_expert_size = keys.integer("expert_shared_feed_forward_length");
  }
  moe.normalise_weights = config.architecture == Architecture::kQwen3Moe;  // no key says so; each family has its way
  for (int64_t layer = 0; layer < std::min<int64_t>(config.layers, 4096); ++layer) {
    if (has_tensor(file, fmt::format("blk.{}.ffn_gate.weight", layer))) moe.dense_layers.push_back(layer);
  }
  return moe;
}

std::vector<int64_t> read_end_tokens(const GgufFile& file) {
  std::vector<int64_t> tokens;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (file.find(key) == nullptr) continue;
    const int64_t token = file.integer(key);
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  return tokens;
}

int64_t vocabulary_rows(const GgufFile& file) {
  const auto found = file.tensors().find("token_embd.weight");
  if (found != file.tensors().end() && found->second.sizes.size() == 2) return found->second.sizes[0];
  throw UsageError(fmt::format("{}: the tensor 'token_embd.weight' is missing or not a matrix", file.path().string()));
}

}  // namespace

ModelConfig read_config(const GgufFile& file) {
  ModelConfig config;
  config.architecture = read_architecture(file);
  const Keys keys(file);
  config.vocabulary = vocabulary_rows(file);
  config.hidden = keys.integer("embedding_length");
  config.layers = keys.integer("block_count");
  config.heads = keys.integer("attention.head_count");
  config.kv_heads = keys.integer("attention.head_count_kv", config.heads);
  config.head_size = keys.integer("attention.key_length", config.heads > 0 ? config.hidden / config.heads : 0);
  if (keys.integer("attention.value_length", config.head_size) != config.head_size) {
    keys.refuse("attention.value_length", "differs from key_length, which is not supported");
  }
  config.context = keys.integer("context_length");
  config.norm_epsilon = keys.number("attention.layer_norm_rms_epsilon");
  if (const int64_t window = keys.integer("attention.sliding_window", 0); window != 0) {
    if (window < 0) keys.refuse("attention.sliding_window", "wanted a positive integer");
    config.exact_context = config.context = std::min(config.context, window);
  }
  read_rope(file, keys, config);
  config.tied_output = !has_tensor(file, "output.weight");
  config.attention_bias = has_tensor(file, "blk.0.attn_q.bias");
  config.output_bias = has_tensor(file, "blk.0.attn_output.bias");
  const bool qwen3 = config.architecture == Architecture::kQwen3 || config.architecture == Architecture::kQwen3Moe;
  config.query_key_norm = qwen3;
  const bool mixture = config.architecture == Architecture::kQwen2Moe || config.architecture == Architecture::kQwen3Moe;
  if (mixture) config.moe = read_moe(file, keys, config);
  if (!mixture && keys.integer("expert_count", 0) != 0) {
    keys.refuse("expert_count", "a mixture of experts of this architecture is not supported");
  }
  config.inner =
      mixture ? keys.integer("feed_forward_length", config.moe.expert_size) : keys.integer("feed_forward_length");
  config.end_tokens = read_end_tokens(file);
  check_config(config, file.path().string());
  return config;
}

}  // namespace faultline::model
