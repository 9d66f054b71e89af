#include "model/kv_cache.h"

#include <ATen/ops/zeros.h>

namespace faultline::model {

// Zeros, not empty: what lies behind a row's length is multiplied by zero weights in places, and NaN times zero is NaN.
KvCache::KvCache(const ModelConfig& config, int64_t rows, int64_t context, const at::TensorOptions& options)
    : rows(rows), context(context) {
  const std::vector<int64_t> sizes = {rows, config.kv_heads, context, config.head_size};
  for (int64_t i = 0; i < config.layers; ++i) layers.push_back({at::zeros(sizes, options), at::zeros(sizes, options)});
}

void KvCache::move_row(int64_t from, int64_t to, int64_t length) {
  for (Layer& layer : layers) {
    for (at::Tensor* cache : {&layer.keys, &layer.values})
      cache->select(0, to).narrow(1, 0, length).copy_(cache->select(0, from).narrow(1, 0, length));
  }
}

}  // namespace faultline::model
