// The operators of our own model that torch does not have, as registered operators of the namespace faultline: taps
// find and name them like any other (families norm, rotary, attention, activation, matmul). Each has a CPU and a CUDA
// kernel with the same meaning; those that training needs have a gradient. Shapes: B rows (sequences), T positions, H
// heads of D elements, K key/value heads, N = B*T tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace faultline::model::ops {

// x / sqrt(mean(x^2) + eps) * weight over the last dimension; in fp32, rounded once. weight: fp32, x: fp32, bf16, fp16.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// (rms_norm(x + residual), x + residual): the sum is rounded to x's type before it is normalised, so that the fused and
// the separate form give the same bits. No gradient: inference only.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps);

// silu(gate) * up for gate_up = [gate | up]: (..., 2F) -> (..., F); in fp32, rounded once.
at::Tensor swiglu(const at::Tensor& gate_up);

// Rotates the first `heads` heads of D elements in each row of x, out of place (Hugging Face order: halves, not pairs).
// x: (N, heads * D + rest), of which the rest is copied; positions: (N) int64; cos, sin: (context, D / 2) fp32.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                  int64_t heads);

// Writes keys and values of new tokens into the caches. key, value: (N, K * D), may be strided views of a fused qkv;
// rows, positions: (N) int64, the sequence's cache row and the token's position; a negative position is skipped.
// key_cache, value_cache: (rows, K, context, D).
void store_kv_(at::Tensor key_cache, at::Tensor value_cache, const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& rows, const at::Tensor& positions);

// One new token per sequence attends to its own past: query (B, H * D), may be a strided view; caches as above, row b
// belongs to sequence b; lengths: (B) int64, how many positions are filled, the new one included (0: the row is idle
// and gives zeros). Reads only the filled part; softmax in fp32. -> (B, H * D)
at::Tensor attend_cached(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                         const at::Tensor& lengths, double scale);

// x (M, K) times weight (N, K) transposed, fp32 accumulation, one rounding: for few rows, where a library's matrix
// product is slow. Family matmul. bias may be undefined.
at::Tensor few_rows_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// The next token of each row and the log-probability that sampling gave it (of the tempered, untruncated distribution).
// logits: (B, V); temperature, top_p: (B) fp32; top_k: (B) int64 (0: all); temperature 0 is greedy (the lowest index of
// equal maxima; its log-probability is at temperature 1). Random numbers: the counter RNG of base/rng.h keyed by
// (key[b], position[b]), key (B) int64, so that a sequence's draws do not depend on its neighbours.
std::tuple<at::Tensor, at::Tensor> sample(const at::Tensor& logits, const at::Tensor& temperature,
                                          const at::Tensor& top_k, const at::Tensor& top_p, const at::Tensor& key,
                                          const at::Tensor& position);

}  // namespace faultline::model::ops
