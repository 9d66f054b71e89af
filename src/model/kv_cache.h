// Keys and values of what sequences have said so far, one pair of tensors a layer. A row belongs to one sequence; rows
// are filled from position 0, without holes.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/config.h"

namespace faultline::model {

struct KvCache {
  struct Layer {
    at::Tensor keys, values;  // (rows, kv heads, context, head size)
  };
  std::vector<Layer> layers;
  int64_t rows = 0, context = 0;

  KvCache() = default;
  KvCache(const ModelConfig& config, int64_t rows, int64_t context, const at::TensorOptions& options);

  void move_row(int64_t from, int64_t to, int64_t length);  // the first `length` positions
};

}  // namespace faultline::model
