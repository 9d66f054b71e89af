// Number formats: quantise and dequantise in one step, exactly, once for host and device. An element format is a
// minifloat (E2M1, E4M3, E5M2), an integer or a block-floating-point mantissa; a scale rule turns the magnitude of a
// block, row, tile or tensor into the scale. Rounding to a grid of step 2^k is done by adding and subtracting
// 1.5 * 2^(23+k): the fp32 adder then rounds to nearest, ties to even, which is what every one of these formats asks.
#pragma once

#include "base/rng.h"
#include "numeric/dtype.h"

namespace faultline::numeric {

enum class FormatKind : uint8_t {
  kMxfp4,
  kMxfp4Ceil,
  kMxfp8E4m3,
  kMxfp8E5m2,
  kNvfp4,
  kNvfp4Single,
  kFp8E4m3,
  kFp8E5m2,
  kInt,
  kBfp,
  kCast
};
enum class Granularity : uint8_t { kBlock, kTensor, kRow, kTile };  // kTile: 128 x 128
enum class CastTarget : uint8_t { kBf16, kFp16, kTf32 };

struct FormatArguments {
  FormatKind kind = FormatKind::kMxfp4;
  Granularity granularity = Granularity::kBlock;
  int32_t block = 32;   // elements along the last dimension
  int32_t bits = 8;     // int, bfp
  bool affine = false;  // int
  bool stochastic = false;
  bool nan_spreads = false;    // nonfinite: spec — a NaN or Inf makes the whole block NaN
  bool normal_scales = false;  // nvfp4: scale_floor: normal — block scales at least 2^-6
  CastTarget cast = CastTarget::kBf16;
};

inline constexpr int kFormatTile = 128;

struct Minifloat {
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  float max;
};
FL_HD constexpr Minifloat e2m1() { return {1, 0, 6.0f}; }
FL_HD constexpr Minifloat e4m3() { return {3, -6, 448.0f}; }
FL_HD constexpr Minifloat e5m2() { return {2, -14, 57344.0f}; }

FL_HD float power_of_two(int exponent) {  // -149 <= exponent <= 127
  return exponent >= -126 ? bits_float(static_cast<uint32_t>(exponent + 127) << 23)
                          : bits_float(exponent < -149 ? 0u : 1u << (exponent + 149));
}
// floor(log2(x)) of a finite x > 0; -127 stands for all subnormal numbers (every user clamps there).
FL_HD int exponent_of(float x) { return static_cast<int>((float_bits(x) >> 23) & 0xFFu) - 127; }

// a >= 0 to the nearest multiple of 2^step_exponent, ties to even multiple; a < 2^(22 + step_exponent).
FL_HD float round_to_step(float a, int step_exponent) {
  const float magic = bits_float((static_cast<uint32_t>(step_exponent + 23 + 127) << 23) | 0x400000u);
  return (a + magic) - magic;
}
FL_HD float round_to_step_stochastic(float a, int step_exponent, uint32_t word) {
  const float units = a * power_of_two(-step_exponent);  // exact: a power of two, no overflow for a within the format
  const float lower = static_cast<float>(static_cast<int32_t>(units));
  return (unit_float(word) < units - lower ? lower + 1.0f : lower) * power_of_two(step_exponent);
}

// |x| on the format's grid, saturating. `stochastic` rounds up with probability distance / gap.
FL_HD float to_minifloat(float a, Minifloat format, bool stochastic, uint32_t word) {
  const int exponent = exponent_of(a);
  const int step = (exponent > format.min_exponent ? exponent : format.min_exponent) - format.mantissa_bits;
  const float clipped = a < format.max ? a : format.max;
  const int clipped_step = a < format.max ? step : exponent_of(format.max) - format.mantissa_bits;
  return stochastic ? round_to_step_stochastic(clipped, clipped_step, word) : round_to_step(clipped, clipped_step);
}

// The scale of one block, row, tile or tensor.
struct Scale {
  float multiply = 0;  // x * multiply (or x / divide) lands on the element format's grid
  float divide = 0;    // 0: multiply; else true division, as the fp8 and int references do
  float back = 0;      // grid value * back = dequantised value
  float zero_point = 0;
};

FL_HD Scale power_scale(int exponent) {
  return {exponent >= 127 ? 0x1p-127f : power_of_two(-exponent), 0.0f, power_of_two(exponent), 0.0f};
}
FL_HD int clamp_e8m0(int exponent) { return exponent < -127 ? -127 : exponent > 127 ? 127 : exponent; }

// nvfp4's scale of the whole tensor, kept normal so that its reciprocal is finite. The order of operations is
// torchao's.
struct Nvfp4Global {
  float scale;
  float inverse;
};
FL_HD Nvfp4Global nvfp4_global(float tensor_amax) {
  const float scale = tensor_amax / (448.0f * 6.0f);
  const float normal = scale < 0x1p-126f ? 0x1p-126f : scale;
  return {normal, 1.0f / normal};
}
FL_HD Scale nvfp4_scale(float amax, const Nvfp4Global& global, bool normal_scales) {
  if (!(amax > 0.0f)) return {};
  float wanted = (amax / 6.0f) / global.scale;
  if (normal_scales && wanted < 0x1p-6f) wanted = 0x1p-6f;
  const float block = to_minifloat(wanted, e4m3(), false, 0);
  if (!(block > 0.0f)) return {};
  const float multiply = global.inverse / block, back = block * global.scale;
  return is_finite(multiply) ? Scale{multiply, 0.0f, back, 0.0f} : Scale{0.0f, back, back, 0.0f};
}

// amax: the largest finite magnitude of the unit; tensor_amax: of the tensor (nvfp4); low, high: range (affine int).
FL_HD Scale format_scale(const FormatArguments& f, float amax, float tensor_amax, float low, float high) {
  if (!(amax > 0.0f)) return {};
  switch (f.kind) {
    case FormatKind::kMxfp4: return power_scale(clamp_e8m0(exponent_of(amax) - 2));
    case FormatKind::kMxfp4Ceil:
      return power_scale(clamp_e8m0(exponent_of(amax) - 2 + ((float_bits(amax) & 0x7FFFFFu) > 0x400000u ? 1 : 0)));
    case FormatKind::kMxfp8E4m3: return power_scale(clamp_e8m0(exponent_of(amax) - 8));
    case FormatKind::kMxfp8E5m2: return power_scale(clamp_e8m0(exponent_of(amax) - 15));
    case FormatKind::kNvfp4:
    case FormatKind::kNvfp4Single: {
      return nvfp4_scale(amax, nvfp4_global(f.kind == FormatKind::kNvfp4 ? tensor_amax : 448.0f * 6.0f),
                         f.normal_scales);
    }
    case FormatKind::kFp8E4m3:
    case FormatKind::kFp8E5m2: {
      const float scale = amax / (f.kind == FormatKind::kFp8E4m3 ? 448.0f : 57344.0f);
      return {0.0f, scale, scale, 0.0f};
    }
    case FormatKind::kInt: {
      if (!f.affine) {
        const float scale = amax / static_cast<float>((1 << (f.bits - 1)) - 1);
        return {0.0f, scale, scale, 0.0f};
      }
      const float levels = static_cast<float>((1 << f.bits) - 1);
      const float bottom = low < 0.0f ? low : 0.0f, top = high > 0.0f ? high : 0.0f;
      const float scale = top / levels - bottom / levels;  // the difference itself could overflow
      if (!(scale > 0.0f)) return {};
      const float zero = round_to_step(-bottom / scale < levels ? -bottom / scale : levels, 0);
      return {0.0f, scale, scale, zero};
    }
    case FormatKind::kBfp: {
      const int step = exponent_of(amax) + 1 - f.bits;
      return power_scale(step < -127 ? -127 : step);
    }
    case FormatKind::kCast: return {1.0f, 0.0f, 1.0f, 0.0f};
  }
  return {};
}

FL_HD float to_cast(float x, CastTarget target, bool stochastic, uint32_t word) {
  if (target == CastTarget::kFp16) {
    return Float16::value(stochastic ? Float16::round_stochastic(x, word) : Float16::round(x));
  }
  const uint32_t drop = target == CastTarget::kBf16 ? 16 : 13;
  const uint32_t bits = float_bits(x), keep = ~((1u << drop) - 1u);
  const uint32_t below = stochastic ? word >> (32 - drop) : ((1u << drop) >> 1) - 1u + ((bits >> drop) & 1u);
  const uint32_t rounded = (bits + below) & keep;
  const bool left = stochastic && (rounded & 0x7F800000u) == 0x7F800000u;  // rounding at random never leaves the range
  return bits_float(left ? bits & keep : rounded);
}

// Signed integers with |q| <= limit, or affine levels 0 … limit around a zero point.
FL_HD float to_integer(float scaled, const Scale& scale, float limit, bool affine, bool stochastic, uint32_t word,
                       bool& saturated) {
  const float a = magnitude(scaled);
  const float bounded = a < 2.0f * limit + 2.0f ? a : 2.0f * limit + 2.0f;
  const float whole =
      with_sign(stochastic ? round_to_step_stochastic(bounded, 0, word) : round_to_step(bounded, 0), scaled);
  const float level = affine ? whole + scale.zero_point : whole;
  const float bottom = affine ? 0.0f : -limit;
  saturated = level < bottom || level > limit;
  const float kept = level < bottom ? bottom : level > limit ? limit : level;
  return affine ? kept - scale.zero_point : kept;
}

// One finite x through the format. A scale of zero (all-zero or vanishing unit) gives zero.
FL_HD float quantize_value(const FormatArguments& f, const Scale& scale, float x, uint32_t word, bool& saturated) {
  saturated = false;
  if (f.kind == FormatKind::kCast) return to_cast(x, f.cast, f.stochastic, word);
  if (!(scale.back > 0.0f)) return with_sign(0.0f, x);
  const float scaled = scale.divide > 0.0f ? x / scale.divide : x * scale.multiply;
  if (f.kind == FormatKind::kInt || f.kind == FormatKind::kBfp) {
    const int levels = f.kind == FormatKind::kBfp || f.affine ? (1 << f.bits) - 1 : (1 << (f.bits - 1)) - 1;
    return to_integer(scaled, scale, static_cast<float>(levels), f.affine, f.stochastic, word, saturated) * scale.back;
  }
  const Minifloat element = f.kind == FormatKind::kMxfp8E4m3 || f.kind == FormatKind::kFp8E4m3   ? e4m3()
                            : f.kind == FormatKind::kMxfp8E5m2 || f.kind == FormatKind::kFp8E5m2 ? e5m2()
                                                                                                 : e2m1();
  const float a = magnitude(scaled);
  saturated = a > element.max;
  return with_sign(to_minifloat(a, element, f.stochastic, word), scaled) * scale.back;
}

}  // namespace faultline::numeric
