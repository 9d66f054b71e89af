// Known bytes: element e of a buffer is a pure function of a key (seed, iteration, layer, rank) and of e, so whoever
// receives the buffer can regenerate it, and a byte that came from another iteration, layer, rank or place is told from
// a flipped bit. Three forms: raw bits (every pattern a wire can carry, NaN included), finite floats (for buffers that
// a computation consumes) and small integers, whose sum over all ranks is exact in the buffer's dtype, so that a
// reduction is compared bit by bit and never with a tolerance.
#pragma once

#include "numeric/dtype.h"

namespace faultline::numeric {

enum class PatternForm : uint8_t { kRaw, kFinite, kInteger };

struct PatternKey {
  uint32_t low = 0;
  uint32_t high = 0;
};

inline constexpr int kMaxPatternRanks = 256;

// What a buffer must hold. One key: the element itself. Several (kInteger only): the sum of the keys' elements.
struct Pattern {
  PatternForm form = PatternForm::kRaw;
  Dtype dtype = Dtype::kFloat32;
  int32_t integer_bits = 1;  // kInteger: values from -2^(bits-1) to 2^(bits-1) - 1
  int32_t keys = 1;
  PatternKey key[kMaxPatternRanks];
};

// One row of a table of checks, in 64-bit words so that a device fills it and one copy brings it home.
struct PatternCheck {
  static constexpr int kSamples = 8;
  static constexpr int kBits = 32;
  uint64_t count;           // elements that differ
  uint64_t first_from_end;  // ~first index, so that zeroed memory means "none" and a maximum finds the first
  uint64_t last;
  uint64_t changed_bits;  // OR of all differences
  uint64_t zeros;         // differing elements that are all zero bits
  uint64_t poisoned;      // differing elements that still hold the poison
  uint64_t samples;       // how many asked for a slot below; kSamples at most are kept
  uint64_t reserved;
  uint64_t index[kSamples];
  uint64_t observed[kSamples];
  uint64_t histogram[kBits];  // by bit, how often it differed

  uint64_t first() const { return ~first_from_end; }
};
inline constexpr int kPatternCheckWords = sizeof(PatternCheck) / 8;

FL_HD uint32_t pattern_word(PatternKey key, uint32_t element) {
  uint32_t x = element * 0x9E3779B1u + key.low;
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= key.high;
  x ^= x >> 15;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 16);
}

template <class Type>
FL_HD typename Type::Bits raw_bits(uint32_t word) {
  return static_cast<typename Type::Bits>(word >> (32 - Type::kWidth));
}

// Magnitudes from 2^-8 to 1: a product of a few thousand of them stays far from overflow.
template <class Type>
FL_HD typename Type::Bits finite_bits(uint32_t word) {
  using Bits = typename Type::Bits;
  constexpr uint32_t kBias = (1u << (Type::kExponentBits - 1)) - 1, kMantissa = (1u << Type::kMantissaBits) - 1;
  const uint32_t bits = word >> (32 - Type::kWidth), sign = 1u << (Type::kWidth - 1);
  const uint32_t exponent = kBias - 8 + ((bits >> Type::kMantissaBits) & 7u);
  return static_cast<Bits>((bits & (sign | kMantissa)) | (exponent << Type::kMantissaBits));
}

FL_HD int32_t integer_value(uint32_t word, int32_t bits) {
  return static_cast<int32_t>(word >> (32 - bits)) - (int32_t{1} << (bits - 1));
}

template <class Type, PatternForm kForm>
FL_HD typename Type::Bits pattern_bits(const Pattern& pattern, uint32_t element) {
  if constexpr (kForm == PatternForm::kRaw) {
    return raw_bits<Type>(pattern_word(pattern.key[0], element));
  } else if constexpr (kForm == PatternForm::kFinite) {
    return finite_bits<Type>(pattern_word(pattern.key[0], element));
  } else {
    int32_t sum = 0;
    for (int32_t k = 0; k < pattern.keys; ++k)
      sum += integer_value(pattern_word(pattern.key[k], element), pattern.integer_bits);
    return Type::round(static_cast<float>(sum));
  }
}

// Calls function.template operator()<Type, kForm>() for the pattern's dtype (fp32, bf16, fp16) and form.
template <class Function>
inline auto dispatch_pattern(const Pattern& pattern, Function&& function) {
  const auto by_form = [&]<class Type>() {
    switch (pattern.form) {
      case PatternForm::kFinite: return function.template operator()<Type, PatternForm::kFinite>();
      case PatternForm::kInteger: return function.template operator()<Type, PatternForm::kInteger>();
      default: return function.template operator()<Type, PatternForm::kRaw>();
    }
  };
  switch (pattern.dtype) {
    case Dtype::kBFloat16: return by_form.template operator()<BFloat16>();
    case Dtype::kFloat16: return by_form.template operator()<Float16>();
    default: return by_form.template operator()<Float32>();
  }
}

}  // namespace faultline::numeric
