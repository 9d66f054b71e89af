// Self-attention with grouped queries: the fused projection, optional norms of queries and keys, rotation, the
// attention itself, the output projection. A forward sees either whole rows (training, scoring, prefill) or one new
// token a row whose past is in the cache (decoding).
#pragma once

#include "model/kv_cache.h"
#include "model/linear.h"
#include "model/norm.h"

namespace faultline::model {

// Angles by position, as Hugging Face computes them: in fp32.
struct RotaryTable {
  at::Tensor cos, sin;  // (positions, head size / 2) fp32
};
RotaryTable make_rotary_table(const ModelConfig& config, int64_t positions, const at::Device& device);

// How the N tokens of a forward see each other.
struct AttentionContext {
  at::Tensor positions;  // (N) int64, none negative
  int64_t rows = 0;      // whole rows: N = rows * length tokens, each sees its row up to itself; padding stands behind
  at::Tensor lengths;    // decoding: (N) filled positions of each row, the new one included; undefined: whole rows
  KvCache* cache = nullptr;    // where keys and values go; null: nowhere
  at::Tensor cache_rows;       // (N) int64
  at::Tensor cache_positions;  // (N) int64; negative: not kept (padding, an idle row)
  const RotaryTable* rotary = nullptr;
};

struct Attention {
  site::PlaceId place = site::kNowhere;
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  Linear qkv, output;
  Norm query_norm, key_norm;  // without weight: none
  bool rotates = true;
  double scale = 0;  // of the scores
  site::PlaceId key_cache = site::kNowhere, value_cache = site::kNowhere;

  at::Tensor operator()(const at::Tensor& x, const AttentionContext& context,
                        int64_t layer) const;  // (N, hidden) -> (N, hidden)
};

}  // namespace faultline::model
