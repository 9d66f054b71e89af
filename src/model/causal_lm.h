// A decoder-only language model. One definition serves training, scoring, prefill and decoding, over one set of
// weights; every linear, norm, layer and attention has a place, named here and nowhere else (Hugging Face's module
// paths).
#pragma once

#include <functional>
#include <variant>

#include "model/attention.h"
#include "model/checkpoint/checkpoint.h"
#include "model/mlp.h"
#include "site/boundary.h"

namespace faultline::model {

struct Layer {
  site::PlaceId place = site::kNowhere;
  Norm input_norm, post_attention_norm;
  Attention attention;
  std::variant<Mlp, Moe> mlp;
  double residual_multiplier = 1;

  at::Tensor update(const at::Tensor& half) const;  // what a half adds to the stream
};

// Weights by Hugging Face name, with the shape that the configuration asks for.
using WeightSource = std::function<at::Tensor(const std::string& name, const std::vector<int64_t>& sizes,
                                              at::ScalarType dtype, const at::Device& device)>;

class CausalLm {
 public:
  // progress: called with the share that is loaded.
  CausalLm(const Checkpoint& checkpoint, at::ScalarType dtype, const at::Device& device,
           const std::function<void(double)>& progress = {});
  CausalLm(const ModelConfig& config, const WeightSource& source, at::ScalarType dtype, const at::Device& device);
  // Random weights (standard deviation 0.02, norms 1) of this shape, from the seed: for speed and for tests.
  CausalLm(const ModelConfig& config, uint64_t seed, at::ScalarType dtype, const at::Device& device);

  // tokens: (B, T) int64, padding behind. -> (B * T, hidden), normed: what the head reads
  at::Tensor hidden_states(const at::Tensor& tokens) const;
  at::Tensor logits(const at::Tensor& hidden) const;  // (N, hidden) -> (N, vocabulary)
  // The same in two forwards, counted apart: the body once, the head for as many pieces as the caller likes.
  at::Tensor body(const at::Tensor& tokens) const;
  at::Tensor head(const at::Tensor& hidden) const;

  // Fills rows of the cache with keys and values: tokens (R, T), padding behind; lengths: (R) int64, real tokens of
  // each; rows: (R) int64, whose cache. A padding token leaves no trace.
  void prefill(const at::Tensor& tokens, const at::Tensor& lengths, const at::Tensor& rows, KvCache& cache) const;
  // One more token of each row: tokens, positions (B) int64, a negative position means that the row is idle.
  // -> (B, vocabulary)
  at::Tensor decode(const at::Tensor& tokens, const at::Tensor& positions, KvCache& cache) const;

  void ensure_positions(int64_t positions) const;  // the rotary table; before a graph is captured

  // The pieces, for whoever examines them one by one. x: (rows * T, hidden), whole rows; the result likewise.
  at::Tensor run_layer(int64_t layer, const at::Tensor& x, int64_t rows) const;
  at::Tensor embed(const at::Tensor& tokens) const;  // (N) -> (N, hidden)
  const std::vector<Layer>& layers() const { return layers_; }
  const at::Tensor& embedding() const { return embedding_; }  // (vocabulary, hidden)
  const Norm& final_norm() const { return final_norm_; }
  const Linear& head_linear() const { return head_; }
  AttentionContext whole_rows(int64_t rows, int64_t length) const;

  const ModelConfig& config() const { return config_; }
  at::TensorOptions options() const { return embedding_.options(); }
  at::Device device() const { return embedding_.device(); }

  struct Parameter {
    std::string name;  // Hugging Face's, or of the fused tensor: model.layers.3.self_attn.qkv_proj.weight
    at::Tensor* tensor;
    site::PlaceId place;
  };
  std::vector<Parameter> parameters();  // in a fixed order
  std::vector<Linear*> linears();       // of the layers, in the same order; the head is not among them
  std::vector<std::string> module_paths();
  std::size_t norm_count() const;

 private:
  at::Tensor forward(const at::Tensor& tokens, const AttentionContext& context, site::ForwardKind kind) const;
  at::Tensor forward_rows(const at::Tensor& tokens, site::ForwardKind kind) const;
  void run_layer(int64_t layer, ResidualStream& stream, const AttentionContext& context) const;

  ModelConfig config_;
  site::PlaceId root_ = site::kNowhere, embedding_place_ = site::kNowhere;
  at::Tensor embedding_;  // (vocabulary, hidden)
  std::vector<Layer> layers_;
  Norm final_norm_;
  Linear head_;
  mutable RotaryTable rotary_;
};

}  // namespace faultline::model
