// What a checkpoint says about its architecture, in one shape for Hugging Face folders and GGUF files. Which norms,
// linears and routers exist follows from these fields, never from substrings of tensor names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace faultline::model {

// Mistral is llama with a sliding window; Phi-3 is the same, stored otherwise, and read as Mistral.
enum class Architecture { kLlama, kQwen2, kQwen3, kQwen2Moe, kQwen3Moe, kSmolLm3, kGranite, kMistral };
std::string_view architecture_name(Architecture architecture);  // as in config.json: "llama", "qwen2_moe"

struct RopeScaling {
  enum class Kind { kNone, kLinear, kDynamic, kLlama3, kYarn } kind = Kind::kNone;  // others are refused by name
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3; yarn: turns (beta_slow, beta_fast)
  int64_t original_context = 8192;                             // llama3, yarn
  double attention_factor = 1;                                 // yarn: of cosines and sines
  bool whole_dimensions = true;                                // yarn: the range of dimensions is rounded outwards
};

struct MoeConfig {
  int64_t experts = 0;  // 0: a dense model
  int64_t experts_per_token = 0;
  int64_t expert_size = 0;            // each expert's inner size
  int64_t shared_expert_size = 0;     // 0: none (qwen2_moe has one)
  bool normalise_weights = false;     // norm_topk_prob
  int64_t sparse_step = 1;            // decoder_sparse_step
  std::vector<int64_t> dense_layers;  // mlp_only_layers
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t vocabulary = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_size = 0, inner = 0;
  int64_t context = 0;
  // Sequences up to here see all that came before them; longer ones would meet a sliding window or a rope that grows
  // with them, which is not computed here: they are refused. It is not above the context. 0: there is no such end.
  int64_t exact_context = 0;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double norm_epsilon = 1e-6;
  bool tied_output = false;               // lm_head is the embedding
  bool attention_bias = false;            // q, k, v (qwen2)
  bool output_bias = false;               // o too (llama with attention_bias)
  bool query_key_norm = false;            // qwen3
  bool mlp_bias = false;                  // gate, up and down of dense layers
  std::vector<int64_t> unrotated_layers;  // smollm3: layers without rotation, in order
  // granite: of the embedding, of what a layer adds, of attention's scores (0: the usual), and what logits are divided
  // by
  double embedding_multiplier = 1, residual_multiplier = 1, attention_multiplier = 0, logits_divisor = 1;
  MoeConfig moe;
  std::vector<int64_t> end_tokens;  // eos ids; empty: not said

  bool is_sparse_layer(int64_t layer) const;  // its mlp is a mixture of experts
  bool is_rotated_layer(int64_t layer) const;
};

// config.json of a Hugging Face folder. Throws UsageError naming file and field: an unknown architecture or rope
// scaling, and every option that would change the model's arithmetic in a way we do not have, is refused by name.
ModelConfig read_config(const Json& json, const std::string& file);

class GgufFile;
ModelConfig read_config(const GgufFile& file);  // the same from a GGUF file's keys

// As config.json has it; read_config gives the same configuration back.
Json to_config_json(const ModelConfig& config);

// The sizes fit together and are such that no product of them overflows. UsageError naming file and field.
void check_config(const ModelConfig& config, const std::string& file);

// The configuration of a Hugging Face folder, without its weights.

// config.json; where generation ends by generation_config.json, if it is there and says so. UsageError naming the file.
ModelConfig read_folder_config(const std::filesystem::path& folder);

}  // namespace faultline::model
