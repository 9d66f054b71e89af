// The fixed orders in which lanes are added (ledger.h, statistics.h), over the last dimension of tensors.
#pragma once

#include <ATen/ATen.h>

#include "numeric/ledger.h"

namespace faultline::numeric::portable {

inline at::Tensor add_neighbours(const at::Tensor& lanes) {  // (…, 2 n) -> (…, n)
  return lanes.slice(-1, 0, c10::nullopt, 2) + lanes.slice(-1, 1, c10::nullopt, 2);
}

inline at::Tensor add_chunk_lanes(const at::Tensor& lanes) {  // (…, 8 n) -> (…, n)
  return add_neighbours(add_neighbours(add_neighbours(lanes)));
}

inline at::Tensor add_by_halving(at::Tensor lanes) {  // (…, 32) -> (…)
  for (int64_t offset = 16; offset > 0; offset /= 2)
    lanes = lanes.narrow(-1, 0, offset) + lanes.narrow(-1, offset, offset);
  return lanes.select(-1, 0);
}

inline at::Tensor add_tree(const at::Tensor& lanes) {  // (n, 256) -> (n)
  const at::Tensor groups = add_by_halving(lanes.reshape({-1, kTileChunks / 32, 32}));
  at::Tensor total = groups.select(1, 0);
  for (int64_t group = 1; group < kTileChunks / 32; ++group) total = total + groups.select(1, group);
  return total;
}

}  // namespace faultline::numeric::portable
