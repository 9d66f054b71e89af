#include "numeric/portable/quantize.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "numeric/apply_device.h"
#include "numeric/arithmetic.h"

namespace faultline::numeric::portable {
namespace {

at::Tensor like(const at::Tensor& x, double value) { return scalar(value, x.scalar_type(), x.device()); }
at::Tensor exponent_of(const at::Tensor& x) { return (bits_of(x).bitwise_right_shift(23) & 0xFF) - 127; }  // int32

at::Tensor power_of_two(const at::Tensor& exponent) {
  const at::Tensor normal = (exponent.clamp_min(-126) + 127).bitwise_left_shift(23);
  const at::Tensor place = (exponent + 149).clamp(0, 23);
  const at::Tensor subnormal = at::bitwise_left_shift(at::ones_like(place), place) * exponent.ge(-149).to(at::kInt);
  return at::where(exponent.ge(-126), normal, subnormal).view(at::kFloat);
}

// By the fp32 adder: to nearest, ties to even.
at::Tensor round_to_step(const at::Tensor& a, const at::Tensor& step) {
  const at::Tensor magic = ((step + (23 + 127)).bitwise_left_shift(23) | 0x400000).view(at::kFloat);
  return (a + magic) - magic;
}
at::Tensor round_to_step_apart(const at::Tensor& a, const at::Tensor& step, Rounding rounding, const at::Tensor& word) {
  const at::Tensor units = a * power_of_two(-step);
  const at::Tensor lower = units.to(at::kInt).to(at::kFloat);
  if (rounding == Rounding::kZero) return lower * power_of_two(step);
  const at::Tensor distance = units - lower;
  const at::Tensor up = rounding == Rounding::kStochastic ? unit_float(word) < distance : distance.ge(0.5);
  return at::where(up, lower + 1.0, lower) * power_of_two(step);
}

// Rounding at random needs words.
struct HowToRound {
  Rounding rounding = Rounding::kEven;
  at::Tensor word;
};
at::Tensor rounded_to(const at::Tensor& a, const at::Tensor& step, const HowToRound& how) {
  return how.rounding == Rounding::kEven ? round_to_step(a, step)
                                         : round_to_step_apart(a, step, how.rounding, how.word);
}
at::Tensor to_minifloat(const at::Tensor& a, const Minifloat& format, const HowToRound& how) {
  const at::Tensor fits = a < static_cast<double>(format.max);
  const at::Tensor top = like(bits_of(a), faultline::numeric::exponent_of(format.max));
  const at::Tensor step = at::where(fits, exponent_of(a).clamp_min(format.min_exponent), top) - format.mantissa_bits;
  return rounded_to(at::where(fits, a, like(a, format.max)), step, how);
}
at::Tensor to_tapered(const at::Tensor& a, const HowToRound& how) {
  const at::Tensor clipped = a.clamp_max(kTaperedMax), exponent = exponent_of(clipped).clamp_min(kTaperedLowest);
  const at::Tensor size = exponent.abs();
  const at::Tensor mantissa = size.le(3).to(at::kInt) + size.le(7).to(at::kInt) + size.le(15).to(at::kInt);
  return rounded_to(clipped, exponent - mantissa, how);
}
at::Tensor to_level(const at::Tensor& x, Levels levels) {
  const bool two_sided = levels == Levels::kNf4;
  const at::Tensor a = two_sided ? x : x.abs();
  at::Tensor y = like(x, level(levels, 0));
  for (int i = 0; i + 1 < level_count(levels); ++i)
    y = at::where(a > static_cast<double>(level_middle(levels, i)), like(x, level(levels, i + 1)), y);
  return two_sided ? y : with_sign(y, x);
}

at::Tensor only_where(const at::Tensor& condition, const at::Tensor& value) {
  return at::where(condition, value, like(value, 0));
}

ScaleTensors power_scale(const at::Tensor& exponent) {
  const at::Tensor multiply =
      at::where(exponent.ge(127), scalar(0x1p-127, at::kFloat, exponent.device()), power_of_two(-exponent));
  const at::Tensor none = at::zeros_like(multiply);
  const at::Tensor stored = power_of_two(exponent);
  return {multiply, none, stored, none, {}, stored};
}
ScaleTensors quotient_scale(const at::Tensor& scale) {
  const at::Tensor none = at::zeros_like(scale);
  return {none, scale, scale, none, {}};
}

struct TensorScaleTensors {
  at::Tensor scale, inverse;
};
TensorScaleTensors tensor_scale(const FormatArguments& f, const at::Tensor& tensor_amax) {
  const at::Tensor one = at::ones_like(tensor_amax);
  if (!f.second_level) return {one, one};
  if (f.scale == ScaleRule::kReciprocal) {
    const at::Tensor encode = (like(one, f.tensor_top) / tensor_amax).clamp_max(bits_float(0x7F7FFFFFu));
    return {one / encode, encode};
  }
  const at::Tensor quotient = tensor_amax / like(one, f.tensor_top);
  const at::Tensor scale = at::where(quotient < 0x1p-126, like(one, 0x1p-126), quotient);
  return {scale, one / scale};
}
ScaleTensors narrow_scale(const FormatArguments& f, at::Tensor wanted, const TensorScaleTensors& tensor) {
  const double lowest = faultline::numeric::power_of_two(f.scale_grid.min_exponent);
  if (f.normal_scales) wanted = at::where(wanted < lowest, like(wanted, lowest), wanted);
  const at::Tensor block = to_minifloat(wanted, f.scale_grid, {});
  const at::Tensor multiply = tensor.inverse / block, back = block * tensor.scale, some = block.gt(0);
  const at::Tensor direct = multiply.abs().lt(INFINITY);
  return {only_where(some & direct, multiply),
          only_where(some & direct.logical_not(), back),
          only_where(some, back),
          at::zeros_like(wanted),
          {},
          block};
}
ScaleTensors reciprocal_scale(const FormatArguments& f, const at::Tensor& amax, const TensorScaleTensors& tensor) {
  const at::Tensor wanted = amax * (tensor.inverse * like(amax, 1.0f / 6.0f));
  const at::Tensor block = to_minifloat(wanted, f.scale_grid, {}), some = block.gt(0), none = at::zeros_like(amax);
  const at::Tensor back = block * tensor.scale;
  const at::Tensor inverse = (at::ones_like(back) / back).clamp_max(bits_float(0x7F7FFFFFu));
  return {only_where(some, inverse), none, only_where(some, back), none, {}, block};
}
at::Tensor to_bf16(const at::Tensor& x) {
  const at::Tensor bits = bits_of(x);
  return ((bits + 0x7FFF + (bits.bitwise_right_shift(16) & 1)) & ~int64_t{0xFFFF}).view(at::kFloat);
}

struct RangeTensors {
  at::Tensor amax, low, high, nonfinite;  // fp32, bool
};

ScaleTensors affine_scale(const FormatArguments& f, const RangeTensors& range) {
  const at::Tensor levels = like(range.amax, f.limit);
  const at::Tensor bottom = only_where(range.low.lt(0), range.low), top = only_where(range.high.gt(0), range.high);
  const at::Tensor scale = top / levels - bottom / levels, some = scale.gt(0);
  const at::Tensor zero = (-bottom) / scale;
  const at::Tensor rounded = round_to_step(at::where(zero < levels, zero, levels), like(bits_of(zero), 0));
  ScaleTensors result = quotient_scale(only_where(some, scale));
  result.zero_point = only_where(some, rounded);
  return result;
}

ScaleTensors scale_by_rule(const FormatArguments& f, const RangeTensors& range, const TensorScaleTensors& tensor,
                           bool four) {
  const at::Tensor& amax = range.amax;
  switch (f.scale) {
    case ScaleRule::kNone: return power_scale(like(bits_of(amax), 0));
    case ScaleRule::kPower: {
      const at::Tensor exponent = exponent_of(amax);
      if (f.element == ElementRule::kInteger) return power_scale((exponent + 1 - f.bits).clamp_min(-127));
      at::Tensor scale = exponent - f.top_exponent;
      if (f.scale_up)
        scale = scale +
                (bits_of(amax) & 0x7FFFFF).gt(static_cast<int64_t>(float_bits(f.grid.max) & 0x7FFFFFu)).to(at::kInt);
      return power_scale(scale.clamp(-127, 127));
    }
    case ScaleRule::kQuotient: return quotient_scale(amax / like(amax, f.top));
    case ScaleRule::kAffine: return affine_scale(f, range);
    case ScaleRule::kNarrow: {
      const at::Tensor wanted = (amax / like(amax, f.top)) / tensor.scale;
      return narrow_scale(f, four ? wanted * like(amax, 1.5) : wanted, tensor);
    }
    case ScaleRule::kReciprocal: return reciprocal_scale(f, amax, tensor);
    case ScaleRule::kHalf: {
      const at::Tensor scale = amax / like(amax, f.top), inverse = at::ones_like(scale) / scale;
      const at::Tensor some = inverse.abs().lt(INFINITY), none = at::zeros_like(amax);
      Pool pool(amax.device());
      const at::Tensor half = rounded_bits(scale.clamp_max(65504.0).contiguous().view({-1}), Dtype::kFloat16, pool);
      const at::Tensor back = half.view(at::kHalf).to(at::kFloat).view(scale.sizes());
      return {only_where(some, inverse), none, only_where(some, back), none, {}};
    }
    case ScaleRule::kHierarchy: {
      const at::Tensor wanted = to_bf16(amax * like(amax, faultline::numeric::to_bf16(1.0f / f.top)));
      const at::Tensor back = to_minifloat(wanted.clamp_min(0x1p-48), f.scale_grid, {}), none = at::zeros_like(amax);
      return {to_bf16(at::ones_like(back) / back), none, back, none, {}, back};
    }
  }
  return quotient_scale(at::ones_like(amax));  // not looked at
}

ScaleTensors format_scale(const FormatArguments& f, const RangeTensors& range, const TensorScaleTensors& tensor,
                          bool four = false) {
  ScaleTensors scale = scale_by_rule(f, range, tensor, four);
  const at::Tensor some = range.amax.gt(0);
  for (at::Tensor* part : {&scale.multiply, &scale.divide, &scale.back, &scale.zero_point})
    *part = only_where(some, *part);
  if (scale.stored.defined()) scale.stored = only_where(some, scale.stored);
  if (f.nan_spreads) scale.poisoned = range.nonfinite;
  return scale;
}

// kHierarchy: (units, 64) -> a scale for each four elements, as tensors of the values' shape.
ScaleTensors local_scales(const ScaleTensors& unit, const at::Tensor& x) {
  const at::Tensor of_four = x.abs().view({x.size(0), -1, 2, 4}).amax(3, true), of_eight = of_four.amax(2, true);
  const auto spread = [&](const at::Tensor& part) { return part.view({-1, 1, 1, 1}); };
  const at::Tensor multiply = spread(unit.multiply), one = at::ones_like(of_four);
  const at::Tensor eight = at::where((of_eight * multiply).ge(4.0), one + one, one);
  const at::Tensor four = at::where((of_four * multiply).ge(eight * 2.0), one + one, one), factor = eight * four;
  const auto all = [&](const at::Tensor& part) { return part.expand({-1, -1, 2, 4}).reshape(x.sizes()); };
  const at::Tensor none = at::zeros_like(x);
  return {all(multiply / factor), none, all(spread(unit.back) * factor), none, unit.poisoned, unit.stored};
}

// (…, 16) in place of formats.h's rotate_eight and rotate_across.
at::Tensor rotated(const at::Tensor& x, bool back) {
  std::vector<float> signs;
  for (int i = 0; i < kRotation; ++i) signs.push_back(rotation_sign(1.0f, i));
  const at::Tensor sign = at::tensor(signs, at::kFloat).to(x.device());
  at::Tensor y = x.reshape({-1, kRotation});
  if (!back) y = y * sign;
  for (const int64_t step : {1, 2, 4, 8}) {
    const at::Tensor pairs = y.view({-1, kRotation / (2 * step), 2, step});
    const at::Tensor a = pairs.select(2, 0), b = pairs.select(2, 1);
    y = at::stack({a + b, a - b}, 2);
  }
  y = y.view({-1, kRotation}) * 0.25;
  y = back ? y * sign : only_where(y.abs().lt(INFINITY), y);
  return y.view(x.sizes());
}

// (…, n) -> ranges over the last dimension, finite values only.
RangeTensors ranges_of(const at::Tensor& x) {
  const at::Tensor finite = x.abs().lt(INFINITY), clean = only_where(finite, x);
  return {clean.abs().amax(-1), clean.amin(-1).clamp_max(0), clean.amax(-1).clamp_min(0), finite.all(-1).logical_not()};
}
RangeTensors over_all(const RangeTensors& range) {
  const auto one = [](const at::Tensor& x) { return x.view({1}); };
  return {one(range.amax.amax()), one(range.low.amin()), one(range.high.amax()), one(range.nonfinite.any())};
}

// Of rows or of tiles, in pieces of bounded size.
RangeTensors unit_ranges(const QuantizeArguments& q, const at::Tensor& values) {
  std::vector<RangeTensors> parts;
  const bool tiled = q.format.granularity == Granularity::kTile;
  const int64_t unit = tiled ? q.format.block : q.format.hadamard ? kRotation : 1;
  const int64_t wide = (q.columns + unit - 1) / unit * unit, unit_rows = tiled ? q.format.tile_rows : 1;
  int64_t rows = std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(1, q.columns));
  rows = (rows + unit_rows - 1) / unit_rows * unit_rows;
  for (int64_t first = 0; first < q.rows; first += rows) {
    const int64_t count = std::min(rows, q.rows - first), high = (count + unit_rows - 1) / unit_rows * unit_rows;
    at::Tensor x = values.narrow(0, first, count).to(at::kFloat);
    if (wide != q.columns || high != count) x = at::constant_pad_nd(x, {0, wide - q.columns, 0, high - count});
    at::Tensor nonfinite;
    if (q.format.hadamard) {
      const at::Tensor finite = x.abs().lt(INFINITY);
      nonfinite = finite.logical_not();
      x = rotated(only_where(finite, x), false);
    }
    const auto by_unit = [&](const at::Tensor& t) {
      return t.view({high / unit_rows, unit_rows, wide / unit, unit}).transpose(1, 2).reshape({-1, unit_rows * unit});
    };
    if (tiled) x = by_unit(x);
    RangeTensors part = ranges_of(x);
    if (nonfinite.defined()) part.nonfinite = (tiled ? by_unit(nonfinite) : nonfinite).any(-1);
    parts.push_back(part);
  }
  const auto all = [&](at::Tensor RangeTensors::* column) {
    std::vector<at::Tensor> pieces;
    for (const RangeTensors& part : parts) pieces.push_back(part.*column);
    return at::cat(pieces);
  };
  return {all(&RangeTensors::amax), all(&RangeTensors::low), all(&RangeTensors::high), all(&RangeTensors::nonfinite)};
}

at::Tensor to_cast(const at::Tensor& x, CastTarget target, const at::Tensor& word, Pool& pool) {  // word: stochastic
  if (target == CastTarget::kFp16) {
    const at::Tensor bits = word.defined() ? stochastic_bits(x.reshape({-1}), Dtype::kFloat16, word.reshape({-1}), pool)
                                           : rounded_bits(x.reshape({-1}), Dtype::kFloat16, pool);
    return bits.view(at::kHalf).to(at::kFloat).view(x.sizes());
  }
  const int64_t drop = target == CastTarget::kBf16 ? 16 : 13, keep = ~((int64_t{1} << drop) - 1);
  const at::Tensor bits = bits_of(x);
  if (!word.defined()) {
    const at::Tensor below = (bits.bitwise_right_shift(drop) & 1) + ((int64_t{1} << (drop - 1)) - 1);
    return ((bits + below) & keep).view(at::kFloat);
  }
  const at::Tensor below = word.bitwise_right_shift(32 - drop) & ((int64_t{1} << drop) - 1);
  const at::Tensor rounded = (bits + below) & keep;
  return at::where((rounded & 0x7F800000).eq(0x7F800000), bits & keep, rounded).view(at::kFloat);
}

struct Quantized {
  at::Tensor y, saturated;
};

Quantized to_integer(const at::Tensor& scaled, const ScaleTensors& scale, double limit, bool affine,
                     const HowToRound& how) {
  const at::Tensor bounded = scaled.abs().clamp_max(static_cast<float>(2 * limit + 2));
  const at::Tensor whole = with_sign(rounded_to(bounded, like(bits_of(bounded), 0), how), scaled);
  const at::Tensor level = affine ? whole + scale.zero_point : whole;
  const double bottom = affine ? 0 : -limit;
  const at::Tensor under = level<bottom, over = level> limit;
  const at::Tensor kept = at::where(under, like(level, bottom), at::where(over, like(level, limit), level));
  return {affine ? kept - scale.zero_point : kept, under | over};
}

// Finite x, (units, elements of one); scales of (units, 1), or of x's shape.
Quantized grid_value(const FormatArguments& f, const ScaleTensors& scale, const at::Tensor& x, const HowToRound& how) {
  const at::Tensor scaled = at::where(scale.divide.gt(0), x / scale.divide, x * scale.multiply);
  Quantized result;
  switch (f.element) {
    case ElementRule::kInteger: result = to_integer(scaled, scale, f.limit, is_affine(f), how); break;
    case ElementRule::kLevels: result = {to_level(scaled, f.levels), at::zeros_like(x, at::kBool)}; break;
    case ElementRule::kTapered:
      result = {with_sign(to_tapered(scaled.abs(), how), scaled), scaled.abs() > static_cast<double>(kTaperedMax)};
      break;
    default: {
      const at::Tensor a = scaled.abs();
      result = {with_sign(to_minifloat(a, f.grid, how), scaled), a > static_cast<double>(f.grid.max)};
    }
  }
  return result;
}

// --- Faults in the encoding, as formats.h has them; codes are int32 ---

at::Tensor minifloat_code(const at::Tensor& a, const Minifloat& grid) {
  const at::Tensor exponent = exponent_of(a);
  const double unit = faultline::numeric::power_of_two(grid.mantissa_bits - grid.min_exponent);
  const at::Tensor normal =
      (exponent - (grid.min_exponent - 1)).bitwise_left_shift(grid.mantissa_bits) |
      (bits_of(a.contiguous()).bitwise_right_shift(23 - grid.mantissa_bits) & ((1 << grid.mantissa_bits) - 1));
  const at::Tensor small = exponent.lt(grid.min_exponent) | a.le(0);
  return at::where(small, only_where(small, a * unit).to(at::kInt), normal);
}
at::Tensor minifloat_of(const at::Tensor& code, const Minifloat& grid) {
  const at::Tensor exponent = code.bitwise_right_shift(grid.mantissa_bits);
  const at::Tensor mantissa = code & ((1 << grid.mantissa_bits) - 1);
  const double unit = faultline::numeric::power_of_two(grid.min_exponent - grid.mantissa_bits);
  const at::Tensor normal = (exponent + (grid.min_exponent - 1 + 127)).bitwise_left_shift(23) |
                            mantissa.bitwise_left_shift(23 - grid.mantissa_bits);
  return at::where(exponent.eq(0), mantissa.to(at::kFloat) * unit, normal.contiguous().view(at::kFloat));
}
at::Tensor struck(const FormatArguments& f, const at::Tensor& code, int width, const at::Tensor& word) {
  const at::Tensor one = at::ones_like(code);
  const at::Tensor bit = f.fault_bit >= 0
                             ? one * (1 << f.fault_bit)
                             : at::bitwise_left_shift(one, ((word & 0xFF) * width).bitwise_right_shift(8).to(at::kInt));
  if (f.stuck) return f.stuck_value ? code | bit : code & bit.bitwise_not();
  return at::where(unit_float(word) < static_cast<double>(f.flip_rate), code.bitwise_xor(bit), code);
}

struct Struck {
  at::Tensor value, changed;
};
Struck struck_value(const FormatArguments& f, const ScaleTensors& scale, const at::Tensor& value,
                    const at::Tensor& word) {
  const int sign_bit = 1 << (f.bits - 1), all = 2 * sign_bit - 1;
  const at::Tensor plain = value.contiguous();
  at::Tensor code;
  if (f.element == ElementRule::kInteger) {
    code = (is_affine(f) ? plain + scale.zero_point : plain).to(at::kInt) & all;
  } else if (f.element == ElementRule::kLevels) {
    code = at::zeros_like(plain, at::kInt);
    for (int i = 0; i + 1 < kLevelCount; ++i)
      code = code + plain.gt(static_cast<double>(level(f.levels, i))).to(at::kInt);
  } else if (f.twos_complement) {
    code = (plain * static_cast<double>(faultline::numeric::power_of_two(f.grid.mantissa_bits))).to(at::kInt) & all;
  } else {
    code = minifloat_code(plain.abs(), f.grid) | bits_of(plain).lt(0).to(at::kInt) * sign_bit;
    if (f.special == Special::kUnsignedZero) code = code * code.ne(sign_bit).to(at::kInt);
  }
  const at::Tensor after = struck(f, code, f.bits, word), changed = after.ne(code);
  at::Tensor result;
  if (f.element == ElementRule::kLevels) {
    result = like(plain, level(f.levels, 0)).expand_as(plain);
    for (int i = 1; i < kLevelCount; ++i) result = at::where(after.eq(i), like(plain, level(f.levels, i)), result);
  } else if (f.element == ElementRule::kInteger || f.twos_complement) {
    const at::Tensor negative = (after & sign_bit).ne(0).to(at::kInt) * (is_affine(f) ? 0 : all + 1);
    const at::Tensor whole = (after - negative).to(at::kFloat);
    result = f.element != ElementRule::kInteger
                 ? whole * static_cast<double>(faultline::numeric::power_of_two(-f.grid.mantissa_bits))
             : is_affine(f) ? whole - scale.zero_point
                            : whole;
  } else {
    const at::Tensor size = after & (sign_bit - 1), sign = 1.0 - 2.0 * (after & sign_bit).ne(0).to(at::kFloat);
    const auto last = static_cast<int64_t>(faultline::numeric::minifloat_code(f.grid.max, f.grid));
    const at::Tensor nan = like(plain, NAN);
    result = with_sign(minifloat_of(size, f.grid), sign);
    result = at::where(size.gt(last), nan, result);
    if (f.special == Special::kIeee)
      result = at::where(size.eq(last + 1), with_sign(like(plain, INFINITY).expand_as(sign), sign), result);
    if (f.special == Special::kUnsignedZero) result = at::where(after.eq(sign_bit), nan, result);
  }
  return {at::where(changed, result, plain), changed};
}

// -> `back` after the fault
Struck struck_scale(const FormatArguments& f, const ScaleTensors& scale, const at::Tensor& tensor_scale,
                    const at::Tensor& word) {
  const at::Tensor some = scale.back.gt(0), stored = scale.stored.contiguous();
  at::Tensor back, changed;
  if (f.scale == ScaleRule::kPower) {
    const at::Tensor code = exponent_of(stored) + 127, after = struck(f, code, 8, word);
    changed = after.ne(code);
    back = at::where(after.eq(255), like(stored, NAN), power_of_two(after - 127));
  } else {
    const at::Tensor code = minifloat_code(stored, f.scale_grid), after = struck(f, code, 8, word);
    changed = after.ne(code);
    const auto last = static_cast<int64_t>(faultline::numeric::minifloat_code(f.scale_grid.max, f.scale_grid));
    const bool has_sign = last < 128;
    const at::Tensor size = has_sign ? after & 127 : after;
    at::Tensor value = at::where(size.gt(last), like(stored, NAN), minifloat_of(size, f.scale_grid));
    if (has_sign) value = at::where((after & 128).ne(0), -value, value);
    back = value * tensor_scale;
  }
  changed = changed & some;
  return {at::where(changed, back, scale.back), changed};
}

// `after`: the scales' `back` after a fault of theirs, or undefined; `strikes`: words of the codes, or undefined.
Quantized quantize_value(const FormatArguments& f, const ScaleTensors& scale, const at::Tensor& x,
                         const HowToRound& how, Pool& pool, const at::Tensor& after = {},
                         const at::Tensor& strikes = {}, at::Tensor* struck = nullptr) {
  if (f.element == ElementRule::kCast) return {to_cast(x, f.cast, how.word, pool), at::zeros_like(x, at::kBool)};
  Quantized result = grid_value(f, scale, x, how);
  const at::Tensor some = scale.back.gt(0);
  if (strikes.defined()) {
    const Struck codes = struck_value(f, scale, result.y, strikes);
    result.y = codes.value;
    *struck = codes.changed & some;
  }
  return {at::where(some, result.y * (after.defined() ? after : scale.back), with_sign(at::zeros_like(x), x)),
          result.saturated & some};
}

// four_over_six: (units, block) -> (units, 1), added in the kernels' order.
at::Tensor block_error(const FormatArguments& f, const ScaleTensors& scale, const at::Tensor& x, Pool& pool) {
  const at::Tensor e = quantize_value(f, scale, x, {}, pool).y - x;
  const at::Tensor chunks = e.view({-1, kChunk});
  at::Tensor sum = at::zeros({chunks.size(0)}, x.options());
  for (int64_t j = 0; j < kChunk; ++j) {
    const at::Tensor one = chunks.select(1, j).contiguous();
    sum = multiply_add(one, one, sum, pool);
  }
  sum = sum.view({x.size(0), -1});
  while (sum.size(1) > 1) {
    const at::Tensor pairs = sum.view({x.size(0), -1, 2});
    sum = pairs.select(2, 0) + pairs.select(2, 1);
  }
  return sum;
}

}  // namespace

QuantizeCall::QuantizeCall(const QuantizeArguments& arguments, const DeviceControl& control, const at::Tensor& x)
    : q_(arguments),
      control_(control),
      bits_(bits_of(x)),
      keys_(round_keys(arguments.noise_key, x.device())),
      padded_columns_(arguments.chunks_per_row * kChunk) {
  tensor_scale_ = tensor_inverse_ = at::ones({1}, at::TensorOptions().dtype(at::kFloat).device(x.device()));
  if (!needs_ranges(q_.format) || x.numel() == 0) return;
  RangeTensors ranges = unit_ranges(q_, x);
  const RangeTensors whole = over_all(ranges);
  const TensorScaleTensors tensor = tensor_scale(q_.format, whole.amax);
  tensor_scale_ = tensor.scale, tensor_inverse_ = tensor.inverse;
  if (q_.format.granularity == Granularity::kTensor) ranges = whole;
  if (!has_units(q_.format)) return;
  unit_scales_ = format_scale(q_.format, ranges, tensor);
  if (q_.format.faulty != Encoded::kScales) return;
  Pool pool(x.device());
  const at::Tensor word =
      block_words(control_, keys_, 0, unit_scales_.back.numel(), kScaleStream, pool).word(0).clone();
  const Struck units = struck_scale(q_.format, unit_scales_, tensor_scale_, word.view(unit_scales_.back.sizes()));
  unit_back_ = units.value;
  struck_units_ = units.changed.sum();
}

// Calls function(row, column, rows, width, padded width) for the parts of a padded range: the end of a row, whole rows,
// the start of one.
template <class Function>
void QuantizeCall::over_rows(int64_t first, int64_t count, const Function& function) const {
  const int64_t end = first + count;
  while (first < end) {
    const int64_t row = first / padded_columns_, column = first % padded_columns_;
    const int64_t rows = column == 0 ? std::max<int64_t>(1, (end - first) / padded_columns_) : 1;
    const int64_t padded = std::min(padded_columns_ - column, end - first);
    const int64_t width = std::clamp<int64_t>(q_.columns - column, 0, padded);
    function(row, std::min(column, q_.columns), rows, width, padded);
    first += rows * padded;
  }
}

at::Tensor QuantizeCall::gathered(int64_t first, int64_t count) const {
  std::vector<at::Tensor> parts;
  over_rows(first, count, [&](int64_t row, int64_t column, int64_t rows, int64_t width, int64_t padded) {
    const at::Tensor part = bits_.narrow(0, row, rows).narrow(1, column, width);
    parts.push_back((width == padded ? part : at::constant_pad_nd(part, {0, padded - width})).reshape({-1}));
  });
  return parts.size() == 1 ? parts[0].clone() : at::cat(parts);
}

void QuantizeCall::write(int64_t first, const at::Tensor& after) const {
  int64_t place = 0;
  over_rows(first, after.numel(), [&](int64_t row, int64_t column, int64_t rows, int64_t width, int64_t padded) {
    const at::Tensor part = after.narrow(0, place, rows * padded).view({rows, padded});
    bits_.narrow(0, row, rows).narrow(1, column, width).copy_(part.narrow(1, 0, width));
    place += rows * padded;
  });
}

at::Tensor QuantizeCall::gathered(const at::Tensor& padded) const {
  const at::Tensor row = at::div(padded, padded_columns_, "floor"), column = padded - row * padded_columns_;
  const at::Tensor exists = column.lt(q_.columns) & row.lt(q_.rows);
  const at::Tensor index = (row * q_.columns + column) * exists.to(at::kLong);
  return bits_.view({-1}).index_select(0, index) * exists.to(bits_.scalar_type());
}

at::Tensor QuantizeCall::selected(const at::Tensor& padded) const {
  const at::Tensor row = at::div(padded, padded_columns_, "floor"), column = padded - row * padded_columns_;
  const at::Tensor exists = column.lt(q_.columns);
  if (q_.extent.structure == Structure::kAll) return exists;
  return exists & extent_selects(q_.extent, q_.mask_key, row, column);
}

// Of the chunk's blocks: from their own numbers, or looked up by where they stand. x: finite, rotated where asked for.
ScaleTensors QuantizeCall::chunk_scales(const at::Tensor& x, const at::Tensor& nonfinite, int64_t first, int64_t block,
                                        Pool& pool) const {
  const auto of_units = [](ScaleTensors scale) {
    for (at::Tensor* part :
         {&scale.multiply, &scale.divide, &scale.back, &scale.zero_point, &scale.poisoned, &scale.stored})
      if (part->defined()) *part = part->unsqueeze(1);
    return scale;
  };
  const FormatArguments& f = q_.format;
  if (f.granularity == Granularity::kBlock) {
    RangeTensors range = ranges_of(x);
    range.nonfinite = nonfinite.any(-1);
    const TensorScaleTensors tensor{tensor_scale_, tensor_inverse_};
    ScaleTensors scale = of_units(format_scale(f, range, tensor));
    if (f.scale == ScaleRule::kHierarchy) return local_scales(scale, x);
    if (!f.four_over_six) return scale;
    const ScaleTensors four = of_units(format_scale(f, range, tensor, true));
    const at::Tensor better = block_error(f, four, x, pool) < block_error(f, scale, x, pool);
    return {at::where(better, four.multiply, scale.multiply),
            at::where(better, four.divide, scale.divide),
            at::where(better, four.back, scale.back),
            scale.zero_point,
            scale.poisoned,
            at::where(better, four.stored, scale.stored)};
  }
  if (f.scale == ScaleRule::kNone) {
    const at::Tensor one = at::ones({1, 1}, x.options()), none = at::zeros_like(one);
    return {one, none, one, none, {}};
  }
  const at::Tensor chunk =
      at::arange(first / block, first / block + x.size(0), at::TensorOptions().dtype(at::kLong).device(x.device()));
  const int64_t per_row = q_.chunks_per_row * kChunk / block;
  const at::Tensor row = at::div(chunk, per_row, "floor"), column = (chunk - row * per_row) * block;
  at::Tensor unit = at::zeros_like(chunk);
  if (f.granularity == Granularity::kRow) unit = row;
  if (f.granularity == Granularity::kTile)
    unit = at::div(row, f.tile_rows, "floor") * tiles_across(q_) + at::div(column, f.block, "floor");
  ScaleTensors scale = unit_scales_;
  if (unit_back_.defined()) scale.stored = unit_back_;  // looked up alike
  for (at::Tensor* part :
       {&scale.multiply, &scale.divide, &scale.back, &scale.zero_point, &scale.poisoned, &scale.stored})
    if (part->defined()) *part = part->index_select(0, unit).unsqueeze(1);
  return scale;
}

QuantizeChunk QuantizeCall::chunk(int64_t first, int64_t count, const at::Tensor& acts, Pool& pool) const {
  const int64_t block = group_of(q_.format);
  QuantizeChunk chunk;
  chunk.before = gathered(first, count);
  chunk.x = chunk.before.view(value_type(q_.dtype)).to(at::kFloat);
  at::Tensor keep = nonfinite_mask(chunk.x, pool).ne(0);
  const at::Tensor nonfinite = keep;
  at::Tensor blocks = only_where(keep.logical_not(), chunk.x).view({-1, block});
  if (q_.format.hadamard) blocks = rotated(blocks, false);
  const ScaleTensors scale = chunk_scales(blocks, keep.view({-1, block}), first, block, pool);
  HowToRound how{q_.format.rounding, {}};
  if (is_stochastic(q_.format))
    how.word =
        flat_words(block_words(control_, keys_, static_cast<uint64_t>(first) / 4, count / 4, kRoundingStream, pool),
                   pool)
            .view({-1, block});
  at::Tensor after, strikes, struck;  // of a fault in the encoding
  if (q_.format.faulty == Encoded::kScales && unit_back_.defined()) {
    after = scale.stored;
  } else if (q_.format.faulty == Encoded::kScales) {
    const at::Tensor word =
        block_words(control_, keys_, static_cast<uint64_t>(first / block), count / block, kScaleStream, pool).word(0);
    ScaleTensors unit = scale;
    const bool local = q_.format.scale == ScaleRule::kHierarchy;
    if (local) unit.back = scale.stored;  // one a unit again
    const Struck units = struck_scale(q_.format, unit, tensor_scale_, word.clone().view({-1, 1}));
    struck = units.changed;
    after = local ? units.value * (scale.back / unit.back) : units.value;
  }
  if (q_.format.faulty == Encoded::kCodes)
    strikes =
        flat_words(block_words(control_, keys_, static_cast<uint64_t>(first) / 4, count / 4, kCodeStream, pool), pool)
            .view({-1, block})
            .clone();
  Quantized quantized = quantize_value(q_.format, scale, blocks, how, pool, after, strikes, &struck);
  if (q_.format.hadamard) quantized.y = rotated(quantized.y, true);
  at::Tensor y = quantized.y.reshape({-1});
  at::Tensor saturated = quantized.saturated.reshape({-1}) & keep.logical_not();
  if (scale.poisoned.defined()) {
    const at::Tensor poisoned = scale.poisoned.expand({-1, block}).reshape({-1});
    y = at::where(poisoned, like(y, NAN), y);
    keep = keep & poisoned.logical_not();
  }
  chunk.selected =
      selected(at::arange(first, first + count, at::TensorOptions().dtype(at::kLong).device(bits_.device())));
  chunk.saturated = saturated & chunk.selected;
  if (strikes.defined())
    chunk.struck = (struck.reshape({-1}) & nonfinite.logical_not() & chunk.selected).sum();
  else if (struck.defined())
    chunk.struck = struck.sum();
  keep = keep | y.eq(chunk.x) | chunk.selected.logical_not();
  if (acts.defined()) keep = keep | acts.eq(0);
  chunk.after = rounded_bits(y.contiguous(), q_.dtype, pool);
  choose_(chunk.after, chunk.before, mask_of(keep, chunk.after.scalar_type()));
  return chunk;
}

}  // namespace faultline::numeric::portable
