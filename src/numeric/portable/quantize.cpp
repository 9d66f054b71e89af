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
at::Tensor round_to_step_stochastic(const at::Tensor& a, const at::Tensor& step, const at::Tensor& word) {
  const at::Tensor units = a * power_of_two(-step);
  const at::Tensor lower = units.to(at::kInt).to(at::kFloat);
  return at::where(unit_float(word) < units - lower, lower + 1.0, lower) * power_of_two(step);
}

// `word` undefined: to nearest.
at::Tensor rounded_to(const at::Tensor& a, const at::Tensor& step, const at::Tensor& word) {
  return word.defined() ? round_to_step_stochastic(a, step, word) : round_to_step(a, step);
}
at::Tensor to_minifloat(const at::Tensor& a, const Minifloat& format, const at::Tensor& word) {
  const at::Tensor fits = a < static_cast<double>(format.max);
  const at::Tensor top = like(bits_of(a), faultline::numeric::exponent_of(format.max));
  const at::Tensor step = at::where(fits, exponent_of(a).clamp_min(format.min_exponent), top) - format.mantissa_bits;
  return rounded_to(at::where(fits, a, like(a, format.max)), step, word);
}

at::Tensor only_where(const at::Tensor& condition, const at::Tensor& value) {
  return at::where(condition, value, like(value, 0));
}

ScaleTensors power_scale(const at::Tensor& exponent) {
  const at::Tensor multiply =
      at::where(exponent.ge(127), scalar(0x1p-127, at::kFloat, exponent.device()), power_of_two(-exponent));
  const at::Tensor none = at::zeros_like(multiply);
  return {multiply, none, power_of_two(exponent), none, {}};
}
ScaleTensors quotient_scale(const at::Tensor& scale) {
  const at::Tensor none = at::zeros_like(scale);
  return {none, scale, scale, none, {}};
}

ScaleTensors nvfp4_scale(const at::Tensor& amax, const at::Tensor& tensor_amax, bool normal_scales) {
  const at::Tensor quotient = tensor_amax / like(amax, 448.0f * 6.0f);
  const at::Tensor global = at::where(quotient < 0x1p-126, like(amax, 0x1p-126), quotient);
  const at::Tensor inverse = at::ones_like(global) / global;
  at::Tensor wanted = (amax / like(amax, 6)) / global;
  if (normal_scales) wanted = at::where(wanted < 0x1p-6, like(amax, 0x1p-6), wanted);
  const at::Tensor block = to_minifloat(wanted, e4m3(), {});
  const at::Tensor multiply = inverse / block, back = block * global, some = block.gt(0), none = at::zeros_like(amax);
  const at::Tensor direct = multiply.abs().lt(INFINITY);
  return {only_where(some & direct, multiply),
          only_where(some & direct.logical_not(), back),
          only_where(some, back),
          none,
          {}};
}

struct RangeTensors {
  at::Tensor amax, low, high, nonfinite;  // fp32, bool
};

ScaleTensors affine_scale(const FormatArguments& f, const RangeTensors& range) {
  const at::Tensor levels = like(range.amax, static_cast<float>((1 << f.bits) - 1));
  const at::Tensor bottom = only_where(range.low.lt(0), range.low), top = only_where(range.high.gt(0), range.high);
  const at::Tensor scale = top / levels - bottom / levels, some = scale.gt(0);
  const at::Tensor zero = (-bottom) / scale;
  const at::Tensor rounded = round_to_step(at::where(zero < levels, zero, levels), like(bits_of(zero), 0));
  ScaleTensors result = quotient_scale(only_where(some, scale));
  result.zero_point = only_where(some, rounded);
  return result;
}

ScaleTensors scale_of_kind(const FormatArguments& f, const RangeTensors& range, const at::Tensor& tensor_amax) {
  const at::Tensor& amax = range.amax;
  const auto e8m0 = [&](int below) { return power_scale((exponent_of(amax) - below).clamp(-127, 127)); };
  switch (f.kind) {
    case FormatKind::kMxfp4: return e8m0(2);
    case FormatKind::kMxfp4Ceil:
      return power_scale(
          (exponent_of(amax) - 2 + (bits_of(amax) & 0x7FFFFF).gt(0x400000).to(at::kInt)).clamp(-127, 127));
    case FormatKind::kMxfp8E4m3: return e8m0(8);
    case FormatKind::kMxfp8E5m2: return e8m0(15);
    case FormatKind::kNvfp4: return nvfp4_scale(amax, tensor_amax, f.normal_scales);
    case FormatKind::kNvfp4Single: return nvfp4_scale(amax, like(amax, 448.0f * 6.0f), f.normal_scales);
    case FormatKind::kFp8E4m3: return quotient_scale(amax / like(amax, 448));
    case FormatKind::kFp8E5m2: return quotient_scale(amax / like(amax, 57344));
    case FormatKind::kInt:
      if (f.affine) return affine_scale(f, range);
      return quotient_scale(amax / like(amax, (1 << (f.bits - 1)) - 1));
    case FormatKind::kBfp: return power_scale((exponent_of(amax) + 1 - f.bits).clamp_min(-127));
    case FormatKind::kCast: break;
  }
  return quotient_scale(at::ones_like(amax));  // not looked at
}

ScaleTensors format_scale(const FormatArguments& f, const RangeTensors& range, const at::Tensor& tensor_amax) {
  ScaleTensors scale = scale_of_kind(f, range, tensor_amax);
  const at::Tensor some = range.amax.gt(0);
  for (at::Tensor* part : {&scale.multiply, &scale.divide, &scale.back, &scale.zero_point})
    *part = only_where(some, *part);
  if (f.nan_spreads) scale.poisoned = range.nonfinite;
  return scale;
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
  const int64_t wide = tiled ? (q.columns + kFormatTile - 1) / kFormatTile * kFormatTile : q.columns;
  int64_t rows = std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(1, q.columns));
  if (tiled) rows = (rows + kFormatTile - 1) / kFormatTile * kFormatTile;
  for (int64_t first = 0; first < q.rows; first += rows) {
    const int64_t count = std::min(rows, q.rows - first), high = (count + kFormatTile - 1) / kFormatTile * kFormatTile;
    at::Tensor x = values.narrow(0, first, count).to(at::kFloat);
    if (tiled) {
      x = at::constant_pad_nd(x, {0, wide - q.columns, 0, high - count});
      x = x.view({high / kFormatTile, kFormatTile, wide / kFormatTile, kFormatTile})
              .transpose(1, 2)
              .reshape({-1, int64_t{kFormatTile} * kFormatTile});
    }
    parts.push_back(ranges_of(x));
  }
  const auto all = [&](at::Tensor RangeTensors::* column) {
    std::vector<at::Tensor> pieces;
    for (const RangeTensors& part : parts) pieces.push_back(part.*column);
    return at::cat(pieces);
  };
  return {all(&RangeTensors::amax), all(&RangeTensors::low), all(&RangeTensors::high), all(&RangeTensors::nonfinite)};
}

at::Tensor to_cast(const at::Tensor& x, CastTarget target, const at::Tensor& word, Pool& pool) {
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
                     const at::Tensor& word) {
  const at::Tensor bounded = scaled.abs().clamp_max(static_cast<float>(2 * limit + 2));
  const at::Tensor whole = with_sign(rounded_to(bounded, like(bits_of(bounded), 0), word), scaled);
  const at::Tensor level = affine ? whole + scale.zero_point : whole;
  const double bottom = affine ? 0 : -limit;
  const at::Tensor under = level<bottom, over = level> limit;
  const at::Tensor kept = at::where(under, like(level, bottom), at::where(over, like(level, limit), level));
  return {affine ? kept - scale.zero_point : kept, under | over};
}

// Finite x, (units, elements of one); scales of (units, 1).
Quantized quantize_value(const FormatArguments& f, const ScaleTensors& scale, const at::Tensor& x,
                         const at::Tensor& word, Pool& pool) {
  if (f.kind == FormatKind::kCast) return {to_cast(x, f.cast, word, pool), at::zeros_like(x, at::kBool)};
  const at::Tensor scaled = at::where(scale.divide.gt(0), x / scale.divide, x * scale.multiply);
  Quantized result;
  if (f.kind == FormatKind::kInt || f.kind == FormatKind::kBfp) {
    const int levels = f.kind == FormatKind::kBfp || f.affine ? (1 << f.bits) - 1 : (1 << (f.bits - 1)) - 1;
    result = to_integer(scaled, scale, levels, f.affine, word);
  } else {
    const Minifloat element = f.kind == FormatKind::kMxfp8E4m3 || f.kind == FormatKind::kFp8E4m3   ? e4m3()
                              : f.kind == FormatKind::kMxfp8E5m2 || f.kind == FormatKind::kFp8E5m2 ? e5m2()
                                                                                                   : e2m1();
    const at::Tensor a = scaled.abs();
    result = {with_sign(to_minifloat(a, element, word), scaled), a > static_cast<double>(element.max)};
  }
  const at::Tensor some = scale.back.gt(0);
  return {at::where(some, result.y * scale.back, with_sign(at::zeros_like(x), x)), result.saturated & some};
}

}  // namespace

QuantizeCall::QuantizeCall(const QuantizeArguments& arguments, const DeviceControl& control, const at::Tensor& x)
    : q_(arguments),
      control_(control),
      bits_(bits_of(x)),
      keys_(round_keys(arguments.noise_key, x.device())),
      padded_columns_(arguments.chunks_per_row * kChunk) {
  if (!needs_ranges(q_.format) || x.numel() == 0) return;
  RangeTensors ranges = unit_ranges(q_, x);
  const bool whole = q_.format.kind == FormatKind::kNvfp4 || q_.format.granularity == Granularity::kTensor;
  if (whole) ranges = over_all(ranges);
  tensor_amax_ = ranges.amax;
  if (q_.format.granularity != Granularity::kBlock) unit_scales_ = format_scale(q_.format, ranges, tensor_amax_);
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

// Of the chunk's blocks: from their own numbers, or looked up by where they stand.
ScaleTensors QuantizeCall::chunk_scales(const at::Tensor& x, int64_t first, int64_t block) const {
  if (q_.format.kind == FormatKind::kCast && !(q_.format.nan_spreads && q_.format.granularity == Granularity::kBlock))
    return {};
  if (q_.format.granularity == Granularity::kBlock) {
    ScaleTensors scale = format_scale(q_.format, ranges_of(x), tensor_amax_);
    for (at::Tensor* part : {&scale.multiply, &scale.divide, &scale.back, &scale.zero_point, &scale.poisoned})
      if (part->defined()) *part = part->unsqueeze(1);
    return scale;
  }
  const at::Tensor chunk =
      at::arange(first / block, first / block + x.size(0), at::TensorOptions().dtype(at::kLong).device(x.device()));
  const at::Tensor row = at::div(chunk, q_.chunks_per_row, "floor"),
                   column = (chunk - row * q_.chunks_per_row) * kChunk;
  at::Tensor unit = at::zeros_like(chunk);
  if (q_.format.granularity == Granularity::kRow) unit = row;
  if (q_.format.granularity == Granularity::kTile)
    unit = at::div(row, kFormatTile, "floor") * ((q_.columns + kFormatTile - 1) / kFormatTile) +
           at::div(column, kFormatTile, "floor");
  ScaleTensors scale = unit_scales_;
  for (at::Tensor* part : {&scale.multiply, &scale.divide, &scale.back, &scale.zero_point, &scale.poisoned})
    if (part->defined()) *part = part->index_select(0, unit).unsqueeze(1);
  return scale;
}

QuantizeChunk QuantizeCall::chunk(int64_t first, int64_t count, const at::Tensor& acts, Pool& pool) const {
  const int64_t block = q_.format.granularity == Granularity::kBlock ? q_.format.block : kChunk;
  QuantizeChunk chunk;
  chunk.before = gathered(first, count);
  chunk.x = chunk.before.view(value_type(q_.dtype)).to(at::kFloat);
  const at::Tensor blocks = chunk.x.view({-1, block});
  const ScaleTensors scale = chunk_scales(blocks, first, block);
  at::Tensor word;
  if (q_.format.stochastic)
    word = flat_words(block_words(control_, keys_, static_cast<uint64_t>(first) / 4, count / 4, kRoundingStream, pool),
                      pool)
               .view({-1, block});
  Quantized quantized = quantize_value(q_.format, scale, blocks, word, pool);
  at::Tensor keep = nonfinite_mask(chunk.x, pool).ne(0);
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
  keep = keep | y.eq(chunk.x) | chunk.selected.logical_not();
  if (acts.defined()) keep = keep | acts.eq(0);
  chunk.after = rounded_bits(y.contiguous(), q_.dtype, pool);
  choose_(chunk.after, chunk.before, mask_of(keep, chunk.after.scalar_type()));
  return chunk;
}

}  // namespace faultline::numeric::portable
