// Number formats: quantise and dequantise in one step, exactly, once for host and device. A format is a description,
// not a name: how one number is rounded (an element rule) and what its block, row, tile or tensor is divided by (a
// scale rule); format_table.cpp names the known ones. Rounding to a grid of step 2^k is done by adding and subtracting
// 1.5 * 2^(23+k): the fp32 adder then rounds to nearest, ties to even. Other roundings take the number apart.
#pragma once

#include "base/rng.h"
#include "numeric/dtype.h"

namespace faultline::numeric {

enum class ElementRule : uint8_t {
  kMinifloat,  // sign, exponent and mantissa; integers under a power-of-two scale are minifloats without exponents
  kInteger,    // -limit … limit, or affine levels 0 … limit around a zero point
  kLevels,     // the nearest of 16 given numbers
  kTapered,    // HiF8: fewer mantissa bits the larger the exponent
  kCast        // bf16, fp16, tf32
};
enum class ScaleRule : uint8_t {
  kNone,        // x itself is rounded
  kPower,       // 2^e by the largest magnitude's exponent
  kQuotient,    // amax / top in fp32; x is divided by it
  kAffine,      // (largest - smallest) / limit in fp32
  kNarrow,      // (amax / top) / g rounded to a minifloat without sign; g = 1, or the tensor's own fp32 scale
  kReciprocal,  // the same as Transformer Engine has it: 2688 / amax and reciprocals instead of quotients
  kHalf,        // amax / top; x is multiplied by its reciprocal, codes by the scale rounded to fp16 (gguf's Q8_0)
  kHierarchy    // HiF4: an E6M2 scale for 64 elements, a factor 1 or 2 for 8 of them and another for 4
};
enum class Granularity : uint8_t { kBlock, kTensor, kRow, kTile };
enum class CastTarget : uint8_t { kBf16, kFp16, kTf32 };
enum class Rounding : uint8_t { kEven, kStochastic, kAway, kZero };  // to nearest with ties to even or away; toward 0
enum class Levels : uint8_t { kNf4, kFp4 };
enum class Special : uint8_t { kNone, kNan, kIeee, kUnsignedZero };  // codes that are no finite number
enum class Encoded : uint8_t { kNothing, kCodes, kScales };          // where a fault in the encoding strikes

struct Minifloat {
  int32_t mantissa_bits;
  int32_t min_exponent;  // of the smallest normal number
  float max;

  constexpr bool operator==(const Minifloat&) const = default;
};
FL_HD constexpr Minifloat e2m1() { return {1, 0, 6.0f}; }
FL_HD constexpr Minifloat e2m3() { return {3, 0, 7.5f}; }
FL_HD constexpr Minifloat e3m2() { return {2, -2, 28.0f}; }
FL_HD constexpr Minifloat e4m3() { return {3, -6, 448.0f}; }
FL_HD constexpr Minifloat e5m2() { return {2, -14, 57344.0f}; }
FL_HD constexpr Minifloat e6m2() { return {2, -48, 49152.0f}; }

struct FormatArguments {
  ElementRule element = ElementRule::kMinifloat;
  ScaleRule scale = ScaleRule::kPower;
  Granularity granularity = Granularity::kBlock;
  Rounding rounding = Rounding::kEven;
  CastTarget cast = CastTarget::kBf16;
  Levels levels = Levels::kNf4;
  Special special = Special::kNone;  // of the element's codes
  bool scale_up = false;             // kPower: the smallest power of two under which nothing saturates
  bool second_level = false;         // kNarrow, kReciprocal: the tensor has an fp32 scale too
  bool four_over_six = false;        // kNarrow: a block's largest becomes 6 or 4, whichever errs less
  bool hadamard = false;             // 16 neighbours are rotated before and back after
  bool nan_spreads = false;          // nonfinite: spec — a NaN or Inf makes the whole unit NaN
  bool normal_scales = false;        // kNarrow: scale_floor: normal — scales are no subnormal numbers
  bool twos_complement = false;      // codes of integers; else sign and magnitude
  Encoded faulty = Encoded::kNothing;
  bool stuck = false;  // the bit is forced to stuck_value; else flipped with flip_rate
  bool stuck_value = false;
  int32_t fault_bit = -1;            // of the code or scale, 0 = lowest; -1: any
  float flip_rate = 0;               // a code or scale and call
  int32_t block = 32;                // kBlock: elements along the last dimension; kTile: columns
  int32_t tile_rows = 128;           // kTile
  int32_t bits = 8;                  // integers: width of a code; bfp: mantissa bits
  int32_t limit = 127;               // kInteger, kAffine
  int32_t top_exponent = 0;          // kPower: e = floor(log2 amax) - top_exponent
  Minifloat grid = e2m1();           // kMinifloat
  Minifloat scale_grid = e4m3();     // kNarrow, kReciprocal
  float top = 6;                     // kQuotient, kNarrow, …: what the largest magnitude becomes
  float tensor_top = 448.0f * 6.0f;  // second_level: what the tensor's largest becomes

  constexpr bool operator==(const FormatArguments&) const = default;
};

FL_HD constexpr bool is_stochastic(const FormatArguments& f) { return f.rounding == Rounding::kStochastic; }
FL_HD constexpr bool is_affine(const FormatArguments& f) { return f.scale == ScaleRule::kAffine; }

// A scale of its own for rows, tiles or the tensor, found in a pass before.
FL_HD constexpr bool has_units(const FormatArguments& f) {
  return f.granularity != Granularity::kBlock && f.scale != ScaleRule::kNone;
}
// Elements of a row that must be looked at together, a multiple of 8.
FL_HD constexpr int32_t group_of(const FormatArguments& f) {
  return f.granularity == Granularity::kBlock ? f.block : f.hadamard ? 16 : 8;
}

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
// The other roundings: `up` says of the distance to the lower multiple, in steps, whether it becomes the upper one.
FL_HD float round_to_step_apart(float a, int step_exponent, Rounding rounding, uint32_t word) {
  const float units = a * power_of_two(-step_exponent);  // exact: a power of two, no overflow for a within the format
  const float lower = static_cast<float>(static_cast<int32_t>(units)), distance = units - lower;
  const bool up =
      rounding == Rounding::kStochastic ? unit_float(word) < distance : rounding == Rounding::kAway && distance >= 0.5f;
  return (up ? lower + 1.0f : lower) * power_of_two(step_exponent);
}
// `word`: read where rounding is stochastic, which rounds up with probability distance / gap.
FL_HD float rounded_to_step(float a, int step_exponent, Rounding rounding, uint32_t word) {
  return rounding == Rounding::kEven ? round_to_step(a, step_exponent)
                                     : round_to_step_apart(a, step_exponent, rounding, word);
}

// |x| on the format's grid, saturating.
FL_HD float to_minifloat(float a, Minifloat format, Rounding rounding, uint32_t word) {
  const int exponent = exponent_of(a);
  const int step = (exponent > format.min_exponent ? exponent : format.min_exponent) - format.mantissa_bits;
  const float clipped = a < format.max ? a : format.max;
  const int clipped_step = a < format.max ? step : exponent_of(format.max) - format.mantissa_bits;
  return rounded_to_step(clipped, clipped_step, rounding, word);
}

// HiF8 (arXiv 2409.16626): three mantissa bits for exponents -3 … 3, two to 7, one to 15, none for -22 … -16; the
// code of 1.5 * 2^15 is infinity, so 2^15 is the largest number.
inline constexpr float kTaperedMax = 0x1p15f;
inline constexpr int kTaperedLowest = -22;
FL_HD float to_tapered(float a, Rounding rounding, uint32_t word) {
  const float clipped = a < kTaperedMax ? a : kTaperedMax;
  int exponent = exponent_of(clipped);
  exponent = exponent < kTaperedLowest ? kTaperedLowest : exponent;
  const int size = exponent < 0 ? -exponent : exponent;
  const int mantissa = size <= 3 ? 3 : size <= 7 ? 2 : size <= 15 ? 1 : 0;
  return rounded_to_step(clipped, exponent - mantissa, rounding, word);
}

// The numbers of a table in ascending order: NF4's sixteen, FP4's eight magnitudes (as bitsandbytes has them).
inline constexpr int kLevelCount = 16;
FL_HD float level(Levels levels, int i) {
  constexpr float kNf4[kLevelCount] = {-1.0f,
                                       -0.6961928009986877f,
                                       -0.5250730514526367f,
                                       -0.39491748809814453f,
                                       -0.28444138169288635f,
                                       -0.18477343022823334f,
                                       -0.09105003625154495f,
                                       0.0f,
                                       0.07958029955625534f,
                                       0.16093020141124725f,
                                       0.24611230194568634f,
                                       0.33791524171829224f,
                                       0.44070982933044434f,
                                       0.5626170039176941f,
                                       0.7229568362236023f,
                                       1.0f};
  constexpr float kFp4[kLevelCount / 2] = {
      0.0f, 0.005208333488553762f, 0.1666666716337204f, 0.25f, 0.3333333432674408f, 0.5f, 0.6666666865348816f, 1.0f};
  return levels == Levels::kNf4 ? kNf4[i] : kFp4[i];
}
FL_HD constexpr int level_count(Levels levels) { return levels == Levels::kNf4 ? kLevelCount : kLevelCount / 2; }
// The middle of neighbours i and i + 1, in fp32: what is larger becomes the upper one.
FL_HD float level_middle(Levels levels, int i) { return (level(levels, i) + level(levels, i + 1)) * 0.5f; }
FL_HD float to_level(float x, Levels levels) {
  const float a = levels == Levels::kNf4 ? x : magnitude(x);
  int index = 0;
  for (int i = 0; i + 1 < level_count(levels); ++i) index += a > level_middle(levels, i) ? 1 : 0;
  return levels == Levels::kNf4 ? level(levels, index) : with_sign(level(levels, index), x);
}

// The scale of one block, row, tile or tensor.
struct Scale {
  float multiply = 0;  // x * multiply (or x / divide) lands on the element format's grid
  float divide = 0;    // 0: multiply; else true division, as the fp8 and int references do
  float back = 0;      // grid value * back = dequantised value
  float zero_point = 0;
  float stored = 0;  // kPower, kNarrow, …: the scale as its own format holds it
};

FL_HD Scale power_scale(int exponent) {
  const float stored = power_of_two(exponent);
  return {exponent >= 127 ? 0x1p-127f : power_of_two(-exponent), 0.0f, stored, 0.0f, stored};
}
FL_HD int clamp_e8m0(int exponent) { return exponent < -127 ? -127 : exponent > 127 ? 127 : exponent; }

// The fp32 scale of the whole tensor, kept normal so that its reciprocal is finite. The order of operations is
// torchao's; Transformer Engine's begins with the reciprocal.
struct TensorScale {
  float scale;
  float inverse;
};
FL_HD TensorScale tensor_scale(const FormatArguments& f, float tensor_amax) {
  if (!f.second_level) return {1.0f, 1.0f};
  if (f.scale == ScaleRule::kReciprocal) {
    const float wanted = f.tensor_top / tensor_amax;
    const float encode = wanted < bits_float(0x7F7FFFFFu) ? wanted : bits_float(0x7F7FFFFFu);
    return {1.0f / encode, encode};
  }
  const float scale = tensor_amax / f.tensor_top;
  const float normal = scale < 0x1p-126f ? 0x1p-126f : scale;
  return {normal, 1.0f / normal};
}
// `wanted`: the block's scale before it is rounded.
FL_HD Scale narrow_scale(const FormatArguments& f, float wanted, const TensorScale& tensor) {
  const float lowest = power_of_two(f.scale_grid.min_exponent);
  if (f.normal_scales && wanted < lowest) wanted = lowest;
  const float block = to_minifloat(wanted, f.scale_grid, Rounding::kEven, 0);
  if (!(block > 0.0f)) return {};
  const float multiply = tensor.inverse / block, back = block * tensor.scale;
  return is_finite(multiply) ? Scale{multiply, 0.0f, back, 0.0f, block} : Scale{0.0f, back, back, 0.0f, block};
}
FL_HD Scale reciprocal_scale(const FormatArguments& f, float amax, const TensorScale& tensor) {
  const float wanted = amax * (tensor.inverse * (1.0f / 6.0f));
  const float block = to_minifloat(wanted, f.scale_grid, Rounding::kEven, 0);
  if (!(block > 0.0f)) return {};
  const float back = block * tensor.scale, inverse = 1.0f / back;
  return {is_finite(inverse) ? inverse : bits_float(0x7F7FFFFFu), 0.0f, back, 0.0f, block};
}
FL_HD float to_bf16(float x) { return BFloat16::value(BFloat16::round(x)); }

// amax: the largest finite magnitude of the unit; tensor: second_level's; low, high: range (affine).
// `four`: the other choice of four_over_six.
FL_HD Scale format_scale(const FormatArguments& f, float amax, const TensorScale& tensor, float low, float high,
                         bool four = false) {
  if (!(amax > 0.0f)) return {};
  switch (f.scale) {
    case ScaleRule::kNone: return {1.0f, 0.0f, 1.0f, 0.0f};
    case ScaleRule::kPower: {
      if (f.element == ElementRule::kInteger) {  // bfp: a scale is a step of the mantissa
        const int step = exponent_of(amax) + 1 - f.bits;
        return power_scale(step < -127 ? -127 : step);
      }
      const bool beyond = f.scale_up && (float_bits(amax) & 0x7FFFFFu) > (float_bits(f.grid.max) & 0x7FFFFFu);
      return power_scale(clamp_e8m0(exponent_of(amax) - f.top_exponent + (beyond ? 1 : 0)));
    }
    case ScaleRule::kQuotient: {
      const float scale = amax / f.top;
      return {0.0f, scale, scale, 0.0f};
    }
    case ScaleRule::kAffine: {
      const float levels = static_cast<float>(f.limit);
      const float bottom = low < 0.0f ? low : 0.0f, top = high > 0.0f ? high : 0.0f;
      const float scale = top / levels - bottom / levels;  // the difference itself could overflow
      if (!(scale > 0.0f)) return {};
      const float zero = round_to_step(-bottom / scale < levels ? -bottom / scale : levels, 0);
      return {0.0f, scale, scale, zero};
    }
    case ScaleRule::kNarrow: {
      const float wanted = (amax / f.top) / tensor.scale;
      return narrow_scale(f, four ? wanted * 1.5f : wanted, tensor);
    }
    case ScaleRule::kReciprocal: return reciprocal_scale(f, amax, tensor);
    case ScaleRule::kHalf: {
      const float scale = amax / f.top, inverse = 1.0f / scale;
      if (!is_finite(inverse)) return {};
      return {inverse, 0.0f, Float16::value(Float16::round(scale < 65504.0f ? scale : 65504.0f)), 0.0f};
    }
    case ScaleRule::kHierarchy: {
      const float wanted = to_bf16(amax * to_bf16(1.0f / f.top));
      const float back = to_minifloat(wanted > 0x1p-48f ? wanted : 0x1p-48f, f.scale_grid, Rounding::kEven, 0);
      return {to_bf16(1.0f / back), 0.0f, back, 0.0f, back};
    }
  }
  return {};
}

// kHierarchy: the scale of four elements, by the largest magnitudes of their eight and of themselves.
FL_HD Scale local_scale(const FormatArguments& f, const Scale& unit, float amax_of_eight, float amax_of_four) {
  if (f.scale != ScaleRule::kHierarchy) return unit;
  const float eight = amax_of_eight * unit.multiply >= 4.0f ? 2.0f : 1.0f;
  const float four = amax_of_four * unit.multiply >= 2.0f * eight ? 2.0f : 1.0f;
  return {unit.multiply / (eight * four), 0.0f, unit.back * (eight * four), 0.0f, unit.stored};
}

// Sixteen neighbours times signs, then a Hadamard matrix, over 4: orthogonal, and its own inverse but for the signs,
// which are Transformer Engine's. Eight elements are one thread's; the last step adds and subtracts across two.
inline constexpr int kRotation = 16;
inline constexpr uint32_t kRotationSigns = 0xD7E8u;  // bit i: element i changes its sign
FL_HD float rotation_sign(float x, int place) { return kRotationSigns >> place & 1u ? -x : x; }
FL_HD void rotate_eight(float (&x)[8]) {
  for (int step = 1; step < 8; step *= 2) {
    for (int i = 0; i < 8; ++i) {
      if (i & step) continue;
      const float a = x[i], b = x[i + step];
      x[i] = a + b, x[i + step] = a - b;
    }
  }
}
// One half's number from its own and the other half's at the same place.
FL_HD float rotate_across(float own, float other, bool second) { return (second ? other - own : own + other) * 0.25f; }

FL_HD float to_cast(float x, CastTarget target, Rounding rounding, uint32_t word) {
  const bool stochastic = rounding == Rounding::kStochastic;
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
FL_HD float to_integer(float scaled, const Scale& scale, float limit, bool affine, Rounding rounding, uint32_t word,
                       bool& saturated) {
  const float a = magnitude(scaled);
  const float bounded = a < 2.0f * limit + 2.0f ? a : 2.0f * limit + 2.0f;
  const float whole = with_sign(rounded_to_step(bounded, 0, rounding, word), scaled);
  const float level = affine ? whole + scale.zero_point : whole;
  const float bottom = affine ? 0.0f : -limit;
  saturated = level < bottom || level > limit;
  const float kept = level < bottom ? bottom : level > limit ? limit : level;
  return affine ? kept - scale.zero_point : kept;
}

// One finite x on the element's grid, under a scale that is not zero.
FL_HD float grid_value(const FormatArguments& f, const Scale& scale, float x, uint32_t word, bool& saturated) {
  const float scaled = scale.divide > 0.0f ? x / scale.divide : x * scale.multiply;
  const float a = magnitude(scaled);
  switch (f.element) {
    case ElementRule::kInteger:
      return to_integer(scaled, scale, static_cast<float>(f.limit), is_affine(f), f.rounding, word, saturated);
    case ElementRule::kLevels: return to_level(scaled, f.levels);
    case ElementRule::kTapered: saturated = a > kTaperedMax; return with_sign(to_tapered(a, f.rounding, word), scaled);
    default: saturated = a > f.grid.max; return with_sign(to_minifloat(a, f.grid, f.rounding, word), scaled);
  }
}

// One finite x through the format. A scale of zero (all-zero or vanishing unit) gives zero.
FL_HD float quantize_value(const FormatArguments& f, const Scale& scale, float x, uint32_t word, bool& saturated) {
  saturated = false;
  if (f.element == ElementRule::kCast) return to_cast(x, f.cast, f.rounding, word);
  if (!(scale.back > 0.0f)) return with_sign(0.0f, x);
  return grid_value(f, scale, x, word, saturated) * scale.back;
}

// --- Faults in the encoding: a bit of an element's code or of a unit's scale, between quantising and dequantising ---

// The code of a magnitude on the grid, without sign, and back.
FL_HD uint32_t minifloat_code(float a, const Minifloat& grid) {
  const int exponent = exponent_of(a);
  const uint32_t mask = (1u << grid.mantissa_bits) - 1u;
  if (exponent < grid.min_exponent || !(a > 0.0f))
    return static_cast<uint32_t>(static_cast<int32_t>(a * power_of_two(grid.mantissa_bits - grid.min_exponent)));
  return static_cast<uint32_t>(exponent - grid.min_exponent + 1) << grid.mantissa_bits |
         (float_bits(a) >> (23 - grid.mantissa_bits) & mask);
}
FL_HD float minifloat_of(uint32_t code, const Minifloat& grid) {
  const int exponent = static_cast<int>(code >> grid.mantissa_bits);
  const uint32_t mantissa = code & ((1u << grid.mantissa_bits) - 1u);
  if (exponent == 0)
    return static_cast<float>(static_cast<int32_t>(mantissa)) * power_of_two(grid.min_exponent - grid.mantissa_bits);
  return bits_float(static_cast<uint32_t>(exponent - 1 + grid.min_exponent + 127) << 23 |
                    mantissa << (23 - grid.mantissa_bits));
}

FL_HD uint32_t struck(const FormatArguments& f, uint32_t code, int width, uint32_t word) {
  const uint32_t bit = 1u << (f.fault_bit >= 0 ? static_cast<uint32_t>(f.fault_bit)
                                               : (word & 0xFFu) * static_cast<uint32_t>(width) >> 8);
  if (f.stuck) return f.stuck_value ? code | bit : code & ~bit;
  return unit_float(word) < f.flip_rate ? code ^ bit : code;
}

// A value on the grid after the fault. NaN and infinity where the code that comes out means them.
FL_HD float struck_value(const FormatArguments& f, const Scale& scale, float value, uint32_t word, bool& changed) {
  const uint32_t sign_bit = 1u << (f.bits - 1), all = (sign_bit << 1) - 1u;
  uint32_t code = 0;
  if (f.element == ElementRule::kInteger) {
    code = static_cast<uint32_t>(static_cast<int32_t>(is_affine(f) ? value + scale.zero_point : value)) & all;
  } else if (f.element == ElementRule::kLevels) {
    while (level(f.levels, static_cast<int>(code)) < value) ++code;
  } else if (f.twos_complement) {
    code = static_cast<uint32_t>(static_cast<int32_t>(value * power_of_two(f.grid.mantissa_bits))) & all;
  } else {
    code = minifloat_code(magnitude(value), f.grid) | (float_bits(value) >> 31 ? sign_bit : 0u);
    if (f.special == Special::kUnsignedZero && code == sign_bit) code = 0;
  }
  const uint32_t after = struck(f, code, f.bits, word);
  changed = after != code;
  if (!changed) return value;
  if (f.element == ElementRule::kLevels) return level(f.levels, static_cast<int>(after));
  const float whole = static_cast<float>(static_cast<int32_t>(after) -
                                         (after & sign_bit && !is_affine(f) ? static_cast<int32_t>(all) + 1 : 0));
  if (f.element == ElementRule::kInteger) return is_affine(f) ? whole - scale.zero_point : whole;
  if (f.twos_complement) return whole * power_of_two(-f.grid.mantissa_bits);
  const uint32_t size = after & ~sign_bit, last = minifloat_code(f.grid.max, f.grid);
  const float sign = after & sign_bit ? -1.0f : 1.0f;
  if (f.special == Special::kUnsignedZero && after == sign_bit) return bits_float(Float32::kNan);
  if (size > last && f.special == Special::kIeee && size == last + 1) return with_sign(bits_float(0x7F800000u), sign);
  if (size > last) return bits_float(Float32::kNan);
  return with_sign(minifloat_of(size, f.grid), sign);
}

// A scale after the fault, `back` alone: elements were quantised by the right one. E8M0's code 255 is NaN; a narrow
// scale of 7 bits has a sign bit above them.
FL_HD Scale struck_scale(const FormatArguments& f, const Scale& scale, const TensorScale& tensor, uint32_t word,
                         bool& changed) {
  changed = false;
  if (!(scale.back > 0.0f)) return scale;
  Scale result = scale;
  if (f.scale == ScaleRule::kPower) {
    const int exponent = scale.stored < 0x1p-126f ? -127 : exponent_of(scale.stored);
    const uint32_t code = static_cast<uint32_t>(exponent + 127), after = struck(f, code, 8, word);
    changed = after != code;
    result.back = after == 255u ? bits_float(Float32::kNan) : power_of_two(static_cast<int>(after) - 127);
    return result;
  }
  const uint32_t code = minifloat_code(scale.stored, f.scale_grid), after = struck(f, code, 8, word);
  changed = after != code;
  if (!changed) return scale;
  const uint32_t last = minifloat_code(f.scale_grid.max, f.scale_grid);
  const bool has_sign = last < 128u;
  const uint32_t size = has_sign ? after & 127u : after;
  const float value = size > last ? bits_float(Float32::kNan) : minifloat_of(size, f.scale_grid);
  result.back = (has_sign && after & 128u ? -value : value) * tensor.scale;
  return result;
}

// quantize_value where codes are struck; `scale` as it was before a fault of its own. `after`: back's true value.
FL_HD float struck_quantize(const FormatArguments& f, const Scale& scale, float after, float x, uint32_t word,
                            uint32_t fault_word, bool& saturated, bool& changed) {
  saturated = changed = false;
  if (!(scale.back > 0.0f)) return with_sign(0.0f, x);
  const float value = grid_value(f, scale, x, word, saturated);
  return (f.faulty == Encoded::kCodes ? struck_value(f, scale, value, fault_word, changed) : value) * after;
}

// four_over_six: the squared error of eight numbers, rounded to nearest.
FL_HD float squared_error(const FormatArguments& f, const Scale& scale, const float* x) {
  FormatArguments nearest = f;
  nearest.rounding = Rounding::kEven;
  float sum = 0;
  for (int j = 0; j < 8; ++j) {
    bool saturated = false;
    const float e = quantize_value(nearest, scale, x[j], 0, saturated) - x[j];
    sum = fused_multiply_add(e, e, sum);
  }
  return sum;
}

}  // namespace faultline::numeric
