// Stored weights -> a tensor: rows of blocks, in memory that may be unaligned, are dequantised to fp32 and rounded once
// to the type that was asked for; several threads share the rows. Both readers of checkpoints end here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace faultline::model {

struct WeightRows {
  uint32_t type = 0;                 // of gguf_blocks
  std::span<const std::byte> bytes;  // all rows, one after another
  int64_t rows = 0, columns = 0;     // columns: a multiple of the block's values
  int64_t permuted_heads = 0;        // see TensorPlace
};

// A new contiguous CPU tensor of these sizes. dtype: fp32, bf16 or fp16, UsageError otherwise. `what` opens the
// sentence that refuses numbers which are not finite, or are too large for dtype.
at::Tensor read_rows(const WeightRows& weight, const std::vector<int64_t>& sizes, at::ScalarType dtype,
                     const std::string& what);

}  // namespace faultline::model
