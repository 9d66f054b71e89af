#include "race/patterns.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "numeric/cpu/pattern.h"
#include "numeric/portable/pattern.h"
#include "numeric/portable/portable.h"
#ifdef FAULTLINE_WITH_CUDA
#include "numeric/cuda/kernels.h"
#include "site/torch_support.h"
#endif

namespace faultline::race {

namespace {

int exact_bits(at::ScalarType type) {  // integers up to 2^bits are exact
  return type == at::kBFloat16 ? 8 : type == at::kHalf ? 11 : 24;
}

int ceil_log2(int value) { return value <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<unsigned>(value - 1))); }

}  // namespace

numeric::Dtype pattern_dtype(at::ScalarType type) {
  FL_ASSERT(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
  return type == at::kFloat      ? numeric::Dtype::kFloat32
         : type == at::kBFloat16 ? numeric::Dtype::kBFloat16
                                 : numeric::Dtype::kFloat16;
}

numeric::PatternKey pattern_key(const PatternPlace& place) {
  uint64_t word = mix64(place.seed, static_cast<uint64_t>(place.stream));
  word = mix64(word, static_cast<uint64_t>(place.iteration));
  word = mix64(word, static_cast<uint64_t>(place.layer));
  word = mix64(word, static_cast<uint64_t>(place.rank));
  return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
}

numeric::Pattern element_pattern(numeric::PatternForm form, at::ScalarType type, const PatternPlace& place) {
  numeric::Pattern pattern;
  pattern.form = form;
  pattern.dtype = pattern_dtype(type);
  pattern.key[0] = pattern_key(place);
  return pattern;
}

numeric::Pattern integer_pattern(at::ScalarType type, const PatternPlace& place, int ranks) {
  FL_ASSERT(ranks <= most_exact_ranks(type));
  numeric::Pattern pattern = element_pattern(numeric::PatternForm::kInteger, type, place);
  // At most 16: larger values would exercise no further bits of a 16-bit sum.
  pattern.integer_bits = std::min(16, exact_bits(type) + 1 - ceil_log2(ranks));
  return pattern;
}

numeric::Pattern sum_pattern(at::ScalarType type, PatternPlace place, int ranks) {
  numeric::Pattern pattern = integer_pattern(type, place, ranks);
  pattern.keys = ranks;
  for (place.rank = 0; place.rank < ranks; ++place.rank) pattern.key[place.rank] = pattern_key(place);
  return pattern;
}

int most_exact_ranks(at::ScalarType type) { return std::min(numeric::kMaxPatternRanks, 1 << exact_bits(type)); }

void fill(const at::Tensor& buffer, const numeric::Pattern& pattern) {
  FL_ASSERT(buffer.is_contiguous() && pattern_dtype(buffer.scalar_type()) == pattern.dtype);
  if (numeric::portable::serves(buffer.device())) return numeric::portable::fill_pattern(buffer, pattern);
  if (buffer.is_cpu()) {
    numeric::cpu::pattern_kernels().fill(pattern, 0, buffer.numel(), buffer.mutable_data_ptr());
    return;
  }
#ifdef FAULTLINE_WITH_CUDA
  const c10::DeviceGuard guard(buffer.device());
  numeric::cuda::fill_pattern(pattern, buffer.numel(), buffer.mutable_data_ptr(),
                              site::current_stream(buffer.device()));
#endif
}

void check(const at::Tensor& buffer, const numeric::Pattern& pattern, uint32_t poison, const at::Tensor& row) {
  FL_ASSERT(buffer.is_contiguous() && pattern_dtype(buffer.scalar_type()) == pattern.dtype);
  if (numeric::portable::serves(buffer.device())) return numeric::portable::check_pattern(buffer, pattern, poison, row);
  auto* words = reinterpret_cast<numeric::PatternCheck*>(row.mutable_data_ptr<int64_t>());
  if (buffer.is_cpu()) {
    numeric::cpu::pattern_kernels().check(pattern, poison, 0, buffer.numel(), buffer.const_data_ptr(), words);
    return;
  }
#ifdef FAULTLINE_WITH_CUDA
  const c10::DeviceGuard guard(buffer.device());
  numeric::cuda::check_pattern(pattern, poison, buffer.numel(), buffer.const_data_ptr(), words,
                               site::current_stream(buffer.device()));
#endif
}

uint32_t poison_word(uint64_t seed, int64_t iteration, int64_t layer) {
  const uint64_t word =
      mix64(mix64(seed ^ 0x706F69736F6Eull, static_cast<uint64_t>(iteration)), static_cast<uint64_t>(layer));
  const auto half = static_cast<uint32_t>(word & 0xFFFFu) | 1u;  // never zero: "zero" and "untouched" differ
  return half | half << 16;
}

void poison(const at::Tensor& buffer, uint32_t word) {
  FL_ASSERT(buffer.is_contiguous());
  const auto half = static_cast<int16_t>(word & 0xFFFFu);
  buffer.view(at::kShort).fill_(half);
}

uint32_t expected_bits(const numeric::Pattern& pattern, uint64_t element) {
  return numeric::dispatch_pattern(pattern, [&]<class Type, numeric::PatternForm kForm>() -> uint32_t {
    return numeric::pattern_bits<Type, kForm>(pattern, static_cast<uint32_t>(element));
  });
}

}  // namespace faultline::race
