#include "model/checkpoint/weight_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Half.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/checkpoint/gguf_blocks.h"

namespace faultline::model {
namespace {

constexpr int64_t kGrain = 1 << 16;  // values a thread takes at least
constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

// Rounds a row; true if every number is finite before and after. Written for the vectoriser: no branch, no early end.
bool store(const float* values, int64_t count, float* out) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & kMagnitude);
    out[i] = values[i];
  }
  return largest < kInfinity;
}

bool store(const float* values, int64_t count, c10::BFloat16* out) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);  // to nearest, ties to even
    largest = std::max({largest, bits & kMagnitude, rounded & kMagnitude});
    out[i].x = static_cast<uint16_t>(rounded >> 16);
  }
  return largest < kInfinity;
}

bool store(const float* values, int64_t count, c10::Half* out) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    out[i].x = c10::detail::fp16_ieee_from_fp32_value(values[i]);
    largest = std::max<uint32_t>(largest, out[i].x & 0x7FFF);
  }
  return largest < 0x7C00;
}

// Row r of Hugging Face's order: within a head of d rows, j * d/2 + i there is 2i + j in a GGUF of llama.
int64_t stored_row(int64_t row, const WeightRows& weight) {
  if (weight.permuted_heads == 0) return row;
  const int64_t head_size = weight.rows / weight.permuted_heads, within = row % head_size;
  return row - within + within % (head_size / 2) * 2 + within / (head_size / 2);
}

// -> the index of the first number that is not finite in the result, or the number of elements.
template <typename T>
int64_t fill(const WeightRows& weight, T* out) {
  const BlockType& block = *find_block_type(weight.type);
  const int64_t row_bytes = weight.columns / block.values * block.bytes, elements = weight.rows * weight.columns;
  std::atomic<int64_t> first_bad{elements};
  const int64_t grain = std::max<int64_t>(1, kGrain / weight.columns);
  at::parallel_for(0, weight.rows, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(weight.columns));
    for (int64_t row = begin; row < end; ++row) {
      dequantise(weight.type, weight.bytes.data() + stored_row(row, weight) * row_bytes, weight.columns, values.data());
      T* target = out + row * weight.columns;
      if (store(values.data(), weight.columns, target)) continue;
      int64_t column = 0;
      while (column < weight.columns && std::isfinite(values[static_cast<std::size_t>(column)]) &&
             std::isfinite(static_cast<float>(target[column]))) {
        ++column;
      }
      int64_t seen = first_bad;
      const int64_t place = row * weight.columns + column;
      while (place < seen && !first_bad.compare_exchange_weak(seen, place)) {
      }
      return;
    }
  });
  return first_bad;
}

[[noreturn]] void refuse(const WeightRows& weight, int64_t element, const std::vector<int64_t>& sizes,
                         at::ScalarType dtype, const std::string& what) {
  const BlockType& block = *find_block_type(weight.type);
  std::vector<float> values(static_cast<std::size_t>(weight.columns));
  const int64_t row = stored_row(element / weight.columns, weight);
  dequantise(weight.type, weight.bytes.data() + row * (weight.columns / block.values * block.bytes), weight.columns,
             values.data());
  const float value = values[static_cast<std::size_t>(element % weight.columns)];
  std::vector<int64_t> index(sizes.size());
  for (std::size_t i = sizes.size(); i > 0; element /= sizes[i - 1], --i) index[i - 1] = element % sizes[i - 1];
  throw UsageError(fmt::format("{}[{}] is {}{}", what, fmt::join(index, ", "), value,
                               std::isfinite(value)
                                   ? fmt::format(", too large for {}; read it as bf16 or fp32", c10::toString(dtype))
                                   : "; weights must be finite"));
}

}  // namespace

at::Tensor read_rows(const WeightRows& weight, const std::vector<int64_t>& sizes, at::ScalarType dtype,
                     const std::string& what) {
  const BlockType* block = find_block_type(weight.type);
  FL_ASSERT(block != nullptr && weight.columns > 0 && weight.columns % block->values == 0);
  FL_ASSERT(std::ssize(weight.bytes) == weight.rows * (weight.columns / block->values * block->bytes));
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw UsageError(fmt::format("{}: weights are read as fp32, bf16 or fp16, not {}", what, c10::toString(dtype)));
  }
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(dtype));
  FL_ASSERT(tensor.numel() == weight.rows * weight.columns);
  void* out = tensor.mutable_data_ptr();
  const int64_t first_bad = dtype == at::kFloat      ? fill(weight, static_cast<float*>(out))
                            : dtype == at::kBFloat16 ? fill(weight, static_cast<c10::BFloat16*>(out))
                                                     : fill(weight, static_cast<c10::Half*>(out));
  if (first_bad < tensor.numel()) refuse(weight, first_bad, sizes, dtype, what);
  return tensor;
}

}  // namespace faultline::model
