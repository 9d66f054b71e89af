// The storage types of tensors and their conversions. Arithmetic happens in `Value` (fp32; fp64 for fp64 tensors); a
// value becomes bits again by exactly one rounding. Conversions are bit manipulation on the host, so that compilers
// vectorise them; devices run the same code, except where a fast path says otherwise. NaN has one spelling here
// (quiet, positive), because CPU and GPU conversions spell it differently.
#pragma once

#include "base/host_device.h"

namespace faultline::numeric {

enum class Dtype : uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64 };

struct Float32 {
  using Bits = uint32_t;
  using Value = float;
  static constexpr Dtype kDtype = Dtype::kFloat32;
  static constexpr int kWidth = 32, kMantissaBits = 23, kExponentBits = 8;
  static constexpr Bits kNan = 0x7FC00000u, kInf = 0x7F800000u;
  FL_HD static Value value(Bits bits) { return bits_float(bits); }
  FL_HD static Bits round(Value value) { return value == value ? float_bits(value) : kNan; }
  FL_HD static Bits round_stochastic(Value value, uint32_t) { return round(value); }
};

struct Float64 {
  using Bits = uint64_t;
  using Value = double;
  static constexpr Dtype kDtype = Dtype::kFloat64;
  static constexpr int kWidth = 64, kMantissaBits = 52, kExponentBits = 11;
  static constexpr Bits kNan = 0x7FF8000000000000ull, kInf = 0x7FF0000000000000ull;
  FL_HD static Value value(Bits bits) { return bits_double(bits); }
  FL_HD static Bits round(Value value) { return value == value ? double_bits(value) : kNan; }
  FL_HD static Bits round_stochastic(Value value, uint32_t) { return round(value); }
};

struct BFloat16 {
  using Bits = uint16_t;
  using Value = float;
  static constexpr Dtype kDtype = Dtype::kBFloat16;
  static constexpr int kWidth = 16, kMantissaBits = 7, kExponentBits = 8;
  static constexpr Bits kNan = 0x7FC0u, kInf = 0x7F80u;
  FL_HD static Value value(Bits bits) { return bits_float(static_cast<uint32_t>(bits) << 16); }
  FL_HD static Bits round(Value value) {
    const uint32_t bits = float_bits(value);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<Bits>((bits & 0x7FFFFFFFu) > 0x7F800000u ? kNan : rounded);
  }
  // Adds the random word below the kept bits: rounds up with probability (distance to the lower neighbour) / gap.
  FL_HD static Bits round_stochastic(Value value, uint32_t word) {
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7F800000u) == 0x7F800000u) return round(value);
    const uint32_t up = (bits + (word >> 16)) >> 16;
    return static_cast<Bits>((up & 0x7F80u) == 0x7F80u ? bits >> 16 : up);  // a finite value stays finite
  }
};

struct Float16 {
  using Bits = uint16_t;
  using Value = float;
  static constexpr Dtype kDtype = Dtype::kFloat16;
  static constexpr int kWidth = 16, kMantissaBits = 10, kExponentBits = 5;
  static constexpr Bits kNan = 0x7E00u, kInf = 0x7C00u;
  FL_HD static Value value(Bits bits) {
    const uint32_t sign = (static_cast<uint32_t>(bits) & 0x8000u) << 16;
    const uint32_t magnitude = (static_cast<uint32_t>(bits) & 0x7FFFu) << 13;
    const uint32_t finite = float_bits(bits_float(magnitude) * 0x1p112f);  // exact, subnormals included
    const uint32_t special = magnitude | 0x7F800000u;
    return bits_float(sign | (magnitude >= (31u << 23) ? special : finite));
  }
  FL_HD static Bits round(Value value) {
    const uint32_t bits = float_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    // A subnormal half is an integer multiple of 2^-24: adding 0.5 lets the fp32 adder do the rounding.
    const uint32_t subnormal = float_bits(bits_float(magnitude) + 0.5f) - 0x3F000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x47800000u ? kInf : half;
    half = magnitude > 0x7F800000u ? kNan : half;
    return static_cast<Bits>(magnitude > 0x7F800000u ? kNan : (sign | half));
  }
  FL_HD static Bits round_stochastic(Value value, uint32_t word) {
    const uint32_t bits = float_bits(value), magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x477FE000u) return round(value);  // beyond 65504 there is no finite upper neighbour
    const uint32_t sign = (bits >> 16) & 0x8000u;
    if (magnitude >= 0x38800000u) return static_cast<Bits>(sign | ((magnitude - 0x38000000u + (word >> 19)) >> 13));
    const float scaled = bits_float(magnitude) * 0x1p24f;  // exact: in units of the smallest subnormal
    const float lower = static_cast<float>(static_cast<int32_t>(scaled));
    const uint32_t up = static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f < scaled - lower ? 1u : 0u;
    return static_cast<Bits>(sign | (static_cast<uint32_t>(static_cast<int32_t>(lower)) + up));
  }
};

// Calls function with a value of the storage type: dispatch_dtype(dtype, [&](auto type) { using Type = decltype(type);
// … }).
template <class Function>
inline __attribute__((always_inline)) auto dispatch_dtype(Dtype dtype, Function&& function) {
  switch (dtype) {
    case Dtype::kBFloat16: return function(BFloat16{});
    case Dtype::kFloat16: return function(Float16{});
    case Dtype::kFloat64: return function(Float64{});
    default: return function(Float32{});
  }
}

FL_HD bool is_finite(float value) { return (float_bits(value) & 0x7F800000u) != 0x7F800000u; }
FL_HD bool is_finite(double value) { return (double_bits(value) >> 52 & 0x7FFu) != 0x7FFu; }
FL_HD float magnitude(float value) { return bits_float(float_bits(value) & 0x7FFFFFFFu); }
FL_HD double magnitude(double value) { return bits_double(double_bits(value) & 0x7FFFFFFFFFFFFFFFull); }
FL_HD float with_sign(float value, float sign) {
  return bits_float((float_bits(value) & 0x7FFFFFFFu) | (float_bits(sign) & 0x80000000u));
}
FL_HD double with_sign(double value, double sign) {
  return bits_double((double_bits(value) & 0x7FFFFFFFFFFFFFFFull) | (double_bits(sign) & 0x8000000000000000ull));
}

}  // namespace faultline::numeric
