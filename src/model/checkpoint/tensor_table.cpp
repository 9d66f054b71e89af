#include "model/checkpoint/tensor_table.h"

#include <fmt/format.h>

namespace faultline::model {
namespace {

using Sizes = std::vector<int64_t>;

class Table {
 public:
  explicit Table(const ModelConfig& config) : config_(config) {}

  void add(const std::string& name, Sizes sizes, const std::string& gguf) {
    places_.push_back({name + ".weight", std::move(sizes), gguf + ".weight"});
  }

  void attention(int64_t layer) {
    const std::string name = fmt::format("model.layers.{}.self_attn.", layer),
                      gguf = fmt::format("blk.{}.attn_", layer);
    const int64_t hidden = config_.hidden, queries = config_.heads * config_.head_size,
                  keys = config_.kv_heads * config_.head_size;
    const bool llama = config_.architecture == Architecture::kLlama;
    linear(name + "q_proj", gguf + "q", queries, hidden, config_.attention_bias, llama ? config_.heads : 0);
    linear(name + "k_proj", gguf + "k", keys, hidden, config_.attention_bias, llama ? config_.kv_heads : 0);
    linear(name + "v_proj", gguf + "v", keys, hidden, config_.attention_bias);
    linear(name + "o_proj", gguf + "output", hidden, queries, config_.output_bias);
    if (config_.query_key_norm) {
      add(name + "q_norm", {config_.head_size}, gguf + "q_norm");
      add(name + "k_norm", {config_.head_size}, gguf + "k_norm");
    }
  }

  void gated_mlp(const std::string& name, const std::string& gguf, const std::string& suffix, int64_t inner,
                 bool bias = false) {
    linear(name + "gate_proj", gguf + "gate" + suffix, inner, config_.hidden, bias);
    linear(name + "up_proj", gguf + "up" + suffix, inner, config_.hidden, bias);
    linear(name + "down_proj", gguf + "down" + suffix, config_.hidden, inner, bias);
  }

  void experts(const std::string& name, const std::string& gguf) {
    add(name + "gate", {config_.moe.experts, config_.hidden}, gguf + "gate_inp");
    for (int64_t expert = 0; expert < config_.moe.experts; ++expert) {
      const std::size_t first = places_.size();
      gated_mlp(fmt::format("{}experts.{}.", name, expert), gguf, "_exps", config_.moe.expert_size);
      for (std::size_t i = first; i < places_.size(); ++i) places_[i].expert = expert;
    }
    if (config_.moe.shared_expert_size > 0) {
      gated_mlp(name + "shared_expert.", gguf, "_shexp", config_.moe.shared_expert_size);
      add(name + "shared_expert_gate", {1, config_.hidden}, gguf + "gate_inp_shexp");
    }
  }

  std::vector<TensorPlace> take() { return std::move(places_); }

 private:
  void linear(const std::string& name, const std::string& gguf, int64_t out, int64_t in, bool bias,
              int64_t permuted_heads = 0) {
    places_.push_back({name + ".weight", {out, in}, gguf + ".weight", -1, permuted_heads});
    if (bias) places_.push_back({name + ".bias", {out}, gguf + ".bias", -1, permuted_heads});
  }

  const ModelConfig& config_;
  std::vector<TensorPlace> places_;
};

}  // namespace

std::vector<TensorPlace> tensor_table(const ModelConfig& config) {
  Table table(config);
  table.add("model.embed_tokens", {config.vocabulary, config.hidden}, "token_embd");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string name = fmt::format("model.layers.{}.", layer), gguf = fmt::format("blk.{}.", layer);
    table.add(name + "input_layernorm", {config.hidden}, gguf + "attn_norm");
    table.attention(layer);
    table.add(name + "post_attention_layernorm", {config.hidden}, gguf + "ffn_norm");
    if (config.is_sparse_layer(layer)) {
      table.experts(name + "mlp.", gguf + "ffn_");
    } else {
      table.gated_mlp(name + "mlp.", gguf + "ffn_", "", config.inner, config.mlp_bias);
    }
  }
  table.add("model.norm", {config.hidden}, "output_norm");
  if (!config.tied_output) table.add("lm_head", {config.vocabulary, config.hidden}, "output");
  return table.take();
}

bool is_redundant(const std::string& name, const ModelConfig& config) {
  return (config.tied_output && name == "lm_head.weight") || name.ends_with(".rotary_emb.inv_freq") ||
         name == "rope_freqs.weight";
}

}  // namespace faultline::model
