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

enum class Architecture { kLlama, kQwen2, kQwen3, kQwen2Moe, kQwen3Moe };
std::string_view architecture_name(Architecture architecture);  // as in config.json: "llama", "qwen2_moe"

struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3 } kind = Kind::kNone;  // others are refused by name
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  int64_t original_context = 8192;                             // llama3
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
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double norm_epsilon = 1e-6;
  bool tied_output = false;     // lm_head is the embedding
  bool attention_bias = false;  // q, k, v (qwen2)
  bool output_bias = false;     // o too (llama with attention_bias)
  bool query_key_norm = false;  // qwen3
  MoeConfig moe;
  std::vector<int64_t> end_tokens;  // eos ids; empty: not said

  bool is_sparse_layer(int64_t layer) const;  // its mlp is a mixture of experts
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
