#include "numeric/portable/evidence.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "numeric/portable/lanes.h"

namespace faultline::numeric::portable {
namespace {

constexpr int64_t kGroup = 32 * kChunk;  // of the sample
constexpr int64_t kGroupsOfTile = kTile / kGroup;

// The numbers of the groups in the sample, below `end`, on the device: the same for every tensor, so that they travel
// once and again only when a longer tensor comes.
struct SampledGroups {
  std::vector<int64_t> numbers;
  at::Tensor on_device;
  int64_t end = 0;
};
at::Tensor sampled_groups_below(int64_t end, const at::Device& device, std::vector<int64_t>& first_of_wave,
                                int64_t groups_of_wave) {
  static std::mutex mutex;
  static std::map<std::string, SampledGroups> all;
  const std::lock_guard<std::mutex> lock(mutex);
  SampledGroups& known = all[device.str()];
  if (known.end < end || !known.on_device.defined()) {
    const int64_t wanted = std::max(end, 2 * known.end);
    for (int64_t group = known.end; group < wanted; ++group) {
      if (is_sampled(group * 32)) known.numbers.push_back(group);
    }
    known.end = wanted;
    known.on_device = at::tensor(known.numbers, at::kLong).to(device);
  }
  const auto place = [&](int64_t group) {
    return std::lower_bound(known.numbers.begin(), known.numbers.end(), group) - known.numbers.begin();
  };
  for (int64_t group = 0; group < end; group += groups_of_wave) first_of_wave.push_back(place(group));
  first_of_wave.push_back(place(end));
  return known.on_device.narrow(0, 0, first_of_wave.back());
}

// value * value added to fp32 lanes, rounded once.
void add_square(const at::Tensor& lanes, const at::Tensor& value, Pool& pool) {
  at::Tensor square = pool.take(at::kDouble, value.numel()), sum = pool.take(at::kDouble, value.numel());
  square.copy_(value);
  square.mul_(square);
  lanes.copy_(add_rounded(square, sum.copy_(lanes), pool));
}

// (segments) of fp64 -> the digits that they add to, (segments, kDigits), and whether one is out of range.
struct DigitTensors {
  at::Tensor digits, overflow;
};
DigitTensors digits_of(const at::Tensor& values) {
  const at::Tensor bits = values.contiguous().view(at::kLong);
  const at::Tensor exponent = bits.bitwise_right_shift(52) & 0xFFF;
  const at::Tensor shift = exponent - (1075 + kLowestExponent);
  at::Tensor mantissa = (bits & 0xFFFFFFFFFFFFFll) | (int64_t{1} << 52);
  mantissa = at::bitwise_right_shift(mantissa, (-shift).clamp(0, 63));
  const at::Tensor overflow = shift + 53 > 32 * kDigits;
  mantissa = mantissa * (exponent.ne(0) & overflow.logical_not()).to(at::kLong);
  const at::Tensor kept = shift.clamp(0, 32 * kDigits - 53), first = kept.bitwise_right_shift(5), offset = kept & 31;
  const at::Tensor low = at::bitwise_left_shift(mantissa, offset);
  const at::Tensor high = at::bitwise_right_shift(mantissa.bitwise_right_shift(1), 63 - offset);
  const at::Tensor parts = at::stack({low & 0xFFFFFFFFll, shift_right(low, 32), high}, 1);  // (segments, 3)
  const at::Tensor place = first.unsqueeze(1) + at::arange(3, first.options());
  const at::Tensor digit = at::arange(kDigits, first.options());
  return {(parts.unsqueeze(2) * place.unsqueeze(2).eq(digit).to(at::kLong)).sum(1), overflow};
}

// (segments, …) -> (kLedgerRows, segments of a row, …), filled with zeros.
at::Tensor by_row(const at::Tensor& of_segments) {
  const int64_t segments = of_segments.size(0), width = of_segments.dim() == 1 ? 1 : of_segments.size(1);
  const int64_t rows = (segments + kLedgerRows - 1) / kLedgerRows;
  const at::Tensor padded = at::zeros({rows * kLedgerRows, width}, of_segments.options());
  padded.narrow(0, 0, segments).copy_(of_segments.view({segments, width}));
  return padded.view({rows, kLedgerRows, width}).transpose(0, 1);
}

at::Tensor count(const at::Tensor& condition) {  // flat bool -> one a tile
  return condition.to(at::kFloat).view({-1, kTile}).sum(1);
}

}  // namespace

Evidence::Evidence(const Traversal& traversal, Dtype dtype, const at::Device& device)
    : traversal_(traversal), dtype_(dtype) {
  const auto options = at::TensorOptions().device(device);
  for (at::Tensor& lanes : lanes_) lanes = at::zeros({traversal.segments, kTile}, options.dtype(at::kFloat));
  relative_ = at::zeros({traversal.segments, kTileChunks}, options.dtype(at::kFloat));
  max_ = at::zeros({traversal.segments}, options.dtype(at::kFloat));
  counts_ = at::zeros({traversal.segments, kPartialCounts}, options.dtype(at::kDouble));
  groups_ = sampled_groups_below((traversal.chunks + 31) / 32, device, first_group_of_wave_,
                                 traversal.segments * kGroupsOfTile);
}

void Evidence::add(const ChunkEvidence& chunk, int64_t segment, Pool& pool) {
  const int64_t n = chunk.x.numel(), tiles = n / kTile;
  const at::Tensor bad = nonfinite_mask(chunk.x, pool), bad_after = nonfinite_mask(chunk.y, pool);
  const at::Tensor keep = pool.take(at::kInt, n);
  at::bitwise_or_out(const_cast<at::Tensor&>(keep), bad, bad_after).bitwise_not_();
  at::Tensor error = pool.take(at::kFloat, n), clean = pool.take(at::kInt, n);
  at::sub_out(error, chunk.y, chunk.x);
  bits_of(error).bitwise_and_(keep);
  at::bitwise_and_out(clean, bits_of(chunk.x), keep);
  const auto lanes_of = [&](int column) { return lanes_[column].narrow(0, segment, tiles).view({-1}); };
  add_square(lanes_of(1), error, pool);
  add_square(lanes_of(2), clean.view(at::kFloat), pool);
  bits_of(error).bitwise_and_(0x7FFFFFFF);
  lanes_of(0).add_(error);
  const at::Tensor max = max_.narrow(0, segment, tiles);
  max.copy_(at::maximum(max, error.view({tiles, kTile}).amax(1)));

  const at::Tensor counts = counts_.narrow(0, segment, tiles);
  const at::Tensor nonzero = chunk.x.ne(0);
  counts.select(1, kCountChanged).add_(count(chunk.changed));
  counts.select(1, kCountNonzero).add_(count(nonzero));
  counts.select(1, kCountZeroed).add_(count(chunk.y.eq(0).bitwise_and_(nonzero)));
  counts.select(1, kCountNonfinite).sub_(bad_after.to(at::kFloat).view({tiles, kTile}).sum(1));
  if (chunk.saturated.defined()) counts.select(1, kCountSaturated).add_(count(chunk.saturated));
  if (chunk.selected.defined()) {
    counts.select(1, kCountSelected).add_(count(chunk.selected));
  } else {
    const int64_t whole = chunk.existing / kTile, left = chunk.existing % kTile;
    if (whole > 0) counts.select(1, kCountSelected).narrow(0, 0, whole).add_(kTile);
    if (left > 0) counts.select(1, kCountSelected).narrow(0, whole, 1).add_(left);
  }
}

void Evidence::add_sample(const at::Tensor& x, const at::Tensor& y, const at::Tensor& selected) {
  if (groups_.numel() == 0) return;
  const float least = dtype_ == Dtype::kFloat16 ? 0x1p-14f : 0x1p-126f;
  const at::Tensor size = x.abs();
  at::Tensor counted = size.ge(least) & size.lt(0x1p127) & y.abs().lt(INFINITY);
  if (selected.defined()) counted = counted & selected;
  // relative_error: by the exponent first, then by the mantissa.
  const at::Tensor bits = bits_of(x);
  const at::Tensor mantissa = ((bits & static_cast<int32_t>(0x807FFFFF)) | 0x3F800000).view(at::kFloat);
  const at::Tensor power = (-(bits & 0x7F800000) + static_cast<int32_t>(254u << 23)).view(at::kFloat);
  at::Tensor scaled = (y - x) * power;
  scaled = at::where(scaled.abs().gt(0x1p60), with_sign(at::full_like(scaled, 0x1p60), scaled), scaled);
  scaled = at::where(scaled.abs().lt(0x1p-60), at::zeros_like(scaled), scaled);
  const at::Tensor relative = at::where(counted, scaled / mantissa, at::zeros_like(scaled));
  const at::Tensor tile = at::div(groups_, kGroupsOfTile, "floor"), part = groups_.remainder(kGroupsOfTile);
  const at::Tensor segment = tile.remainder(traversal_.segments);
  counts_.select(1, kCountSampled).index_add_(0, segment, counted.to(at::kDouble).sum(1));
  const at::Tensor lanes = relative_.view({-1, 32}), lane = segment * kGroupsOfTile + part;
  Pool pool(x.device());
  for (std::size_t wave = 0; wave + 1 < first_group_of_wave_.size(); ++wave) {
    const int64_t first = first_group_of_wave_[wave], size_of = first_group_of_wave_[wave + 1] - first;
    if (size_of == 0) continue;
    const at::Tensor places = lane.narrow(0, first, size_of);
    const at::Tensor sums = lanes.index_select(0, places).view({-1});
    const at::Tensor errors = relative.narrow(0, first, size_of).view({-1, kChunk}).t().contiguous();
    for (int64_t j = 0; j < kChunk; ++j) add_square(sums, errors.select(0, j), pool);
    lanes.index_copy_(0, places, sums.view({-1, 32}));
  }
}

void Evidence::finish(const at::Tensor& ledger, int64_t elements, const at::Tensor& armed, const at::Tensor& acts) {
  const at::Tensor words = ledger.view({kLedgerRows, kRowWords});
  const auto add = [&](int64_t column, const at::Tensor& rows) {  // (kLedgerRows, width)
    words.narrow(1, column, rows.size(1)).add_(rows * acts);
  };
  add(kWordCounts, by_row(counts_.to(at::kLong)).sum(1));
  at::Tensor overflow = words.select(1, kWordOverflow);
  for (int k = 0; k < kPartialSums; ++k) {
    const at::Tensor chunks = k == kPartialRelative ? relative_ : add_chunk_lanes(lanes_[k]);
    const at::Tensor sums = add_tree(chunks.to(at::kDouble));
    const DigitTensors digits = digits_of(sums);
    add(kWordSums + k * kDigits, by_row(digits.digits).sum(1));
    overflow.bitwise_or_(by_row(digits.overflow.to(at::kLong)).amax(1).select(1, 0) * acts);
  }
  const at::Tensor max = by_row(max_.to(at::kDouble)).amax(1).select(1, 0).contiguous().view(at::kLong) * acts;
  const at::Tensor largest = words.select(1, kWordMax);
  largest.copy_(at::maximum(largest, max));
  const at::Tensor first = words.select(0, 0);
  first.select(0, kWordCalls).add_(armed);
  first.select(0, kWordActive).add_(acts);
  first.select(0, kWordElements).add_(acts * elements);
}

}  // namespace faultline::numeric::portable
