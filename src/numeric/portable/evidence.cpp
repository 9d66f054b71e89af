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

// fp32 lanes plus fp64 numbers that are not negative, rounded once. `starts`: the lanes hold zeros.
void add_rounded_once(const at::Tensor& lanes, const at::Tensor& added, bool starts, Pool& pool) {
  if (starts) {
    lanes.copy_(added);
    return;
  }
  const auto taken = [&] { return pool.take(at::kDouble, lanes.numel()).view(lanes.sizes()); };
  at::Tensor small = taken(), large = taken();
  const at::Tensor there = operand64(lanes, pool);
  at::minimum_out(small, there, added);
  at::maximum_out(large, there, added);
  lanes.copy_(positive_sum(small, large, pool));
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

// (sums, segments, …) -> (sums, segments of a row, kLedgerRows, …), filled with zeros.
at::Tensor by_row(const at::Tensor& of_segments) {
  std::vector<int64_t> sizes = of_segments.sizes().vec();
  const int64_t rows = (sizes[1] + kLedgerRows - 1) / kLedgerRows, left = rows * kLedgerRows - sizes[1];
  sizes[1] = kLedgerRows;
  sizes.insert(sizes.begin() + 1, rows);
  const at::Tensor flat = of_segments.reshape({sizes[0], of_segments.size(1), -1});
  return (left == 0 ? flat : at::constant_pad_nd(flat, {0, 0, 0, left})).view(sizes);
}

// (…, tiles) -> (…, waves, tiles of a wave), filled with zeros.
at::Tensor by_wave(const at::Tensor& of_tiles, int64_t per_wave) {
  const int64_t tiles = of_tiles.size(-1), waves = (tiles + per_wave - 1) / per_wave, left = waves * per_wave - tiles;
  return (left == 0 ? of_tiles : at::constant_pad_nd(of_tiles, {0, left})).unflatten(-1, {waves, per_wave});
}

}  // namespace

// The same for all tensors of a size: worked out on the host, kept for as many sizes as a model has.
std::shared_ptr<const Evidence::Sample> Evidence::sample_of(const Traversal& traversal, const at::Device& device) {
  constexpr std::size_t kMost = 1024;
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int64_t, int64_t>, std::shared_ptr<const Sample>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const int64_t end = (traversal.chunks + 31) / 32;
  const std::tuple key{device.str(), end, traversal.segments};
  if (const auto found = known.find(key); found != known.end()) return found->second;
  std::map<int64_t, std::size_t> met;  // groups on the same lanes so far
  std::vector<std::vector<int64_t>> turns;
  const auto segment_of = [&](int64_t group) { return group / kGroupsOfTile % traversal.segments; };
  const auto lanes_of = [&](int64_t group) { return segment_of(group) * kGroupsOfTile + group % kGroupsOfTile; };
  for (int64_t group = 0; group < end; ++group) {
    if (!is_sampled(group * 32)) continue;
    const std::size_t turn = met[lanes_of(group)]++;
    if (turn == turns.size()) turns.emplace_back();
    turns[turn].push_back(group);
  }
  Sample sample;
  std::vector<int64_t> rows[3];
  for (const std::vector<int64_t>& turn : turns) {
    sample.first_of_turn.push_back(std::ssize(rows[0]));
    for (const int64_t group : turn)
      rows[0].push_back(group), rows[1].push_back(lanes_of(group)), rows[2].push_back(segment_of(group));
  }
  sample.first_of_turn.push_back(std::ssize(rows[0]));
  const auto there = [&](const std::vector<int64_t>& row) { return at::tensor(row, at::kLong).to(device); };
  sample.groups = there(rows[0]), sample.lanes = there(rows[1]), sample.segments = there(rows[2]);
  if (known.size() == kMost) known.clear();
  return known[key] = std::make_shared<const Sample>(std::move(sample));
}

Evidence::Evidence(const Traversal& traversal, Dtype dtype, const at::Device& device)
    : traversal_(traversal), dtype_(dtype), sample_(sample_of(traversal, device)) {
  const auto options = at::TensorOptions().device(device);
  absolute_ = at::zeros({traversal.segments, kTile}, options.dtype(at::kFloat));
  squares_ = at::zeros({2, traversal.segments, kTile}, options.dtype(at::kFloat));
  relative_ = at::zeros({traversal.segments, kTileChunks}, options.dtype(at::kFloat));
  max_ = at::zeros({traversal.segments}, options.dtype(at::kFloat));
  counts_ = at::zeros({kPartialCounts, traversal.segments}, options.dtype(at::kLong));
}

void Evidence::add(const ChunkEvidence& chunk, int64_t segment, int64_t per_wave, bool starts, Pool& pool) {
  const int64_t n = chunk.x.numel(), tiles = n / kTile;
  const at::Tensor keep = nonfinite_mask(chunk.x, pool), bad_after = nonfinite_mask(chunk.y, pool);
  keep.bitwise_or_(bad_after).bitwise_not_();
  at::Tensor error = pool.take(at::kFloat, n), squares = pool.take(at::kDouble, 2 * n).view({2, tiles, kTile});
  at::sub_out(error, chunk.y, chunk.x);
  bits_of(error).bitwise_and_(keep);
  squares.select(0, 0).view({-1}).copy_(error);
  bits_of(error).bitwise_and_(0x7FFFFFFF);
  keep.bitwise_and_(bits_of(chunk.x));
  squares.select(0, 1).view({-1}).copy_(keep.view(at::kFloat));
  squares.mul_(squares);
  for (int64_t first = 0; first < tiles; first += per_wave) {
    const int64_t size = std::min(per_wave, tiles - first);
    add_rounded_once(squares_.narrow(1, segment, size), squares.narrow(1, first, size), starts && first == 0, pool);
    absolute_.narrow(0, segment, size).add_(error.view({tiles, kTile}).narrow(0, first, size));
  }
  const int64_t width = std::min(per_wave, tiles);
  const at::Tensor max = max_.narrow(0, segment, width);
  max.copy_(at::maximum(max, by_wave(error.view({tiles, kTile}).amax(1), per_wave).amax(0).narrow(0, 0, width)));

  at::Tensor flags = pool.take(at::kBool, 6 * n).view({6, tiles, kTile});
  const auto flag = [&](int64_t row) { return flags.select(0, row).view({-1}); };
  at::Tensor nonzero = flag(0), zeroed = flag(1);
  at::ne_out(nonzero, chunk.x, 0);
  at::eq_out(zeroed, chunk.y, 0);
  zeroed.bitwise_and_(nonzero);
  flag(2).copy_(chunk.changed);
  flag(3).copy_(bad_after);
  std::vector<int64_t> columns{kCountNonzero, kCountZeroed, kCountChanged, kCountNonfinite};
  if (chunk.saturated.defined()) flag(std::ssize(columns)).copy_(chunk.saturated), columns.push_back(kCountSaturated);
  if (chunk.selected.defined()) flag(std::ssize(columns)).copy_(chunk.selected), columns.push_back(kCountSelected);
  const at::Tensor found = by_wave(flags.narrow(0, 0, std::ssize(columns)).sum(2), per_wave).sum(1);
  const auto counts = [&](int64_t column) { return counts_.select(0, column).narrow(0, segment, width); };
  for (std::size_t k = 0; k < columns.size(); ++k)
    counts(columns[k]).add_(found.select(0, static_cast<int64_t>(k)).narrow(0, 0, width));
  if (chunk.selected.defined()) return;
  for (int64_t first = 0; first < tiles; first += per_wave) {
    const int64_t there = std::min(per_wave * kTile, chunk.existing - first * kTile), whole = there / kTile;
    if (whole > 0) counts(kCountSelected).narrow(0, 0, whole).add_(kTile);
    if (there % kTile > 0) counts(kCountSelected).narrow(0, whole, 1).add_(there % kTile);
  }
}

void Evidence::add_sample(const at::Tensor& x, const at::Tensor& y, const at::Tensor& selected) {
  if (sample_->groups.numel() == 0) return;
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
  counts_.select(0, kCountSampled).index_add_(0, sample_->segments, counted.sum(1));
  // (8, groups, 32): the elements of each lane one after the other.
  const at::Tensor squares = relative.to(at::kDouble).square_().view({-1, 32, kChunk}).permute({2, 0, 1}).contiguous();
  const at::Tensor lanes = relative_.view({-1, 32});
  Pool pool(x.device());
  for (std::size_t turn = 0; turn + 1 < sample_->first_of_turn.size(); ++turn) {
    const int64_t first = sample_->first_of_turn[turn], count = sample_->first_of_turn[turn + 1] - first;
    const at::Tensor places = sample_->lanes.narrow(0, first, count), sums = lanes.index_select(0, places);
    for (int64_t j = 0; j < kChunk; ++j)
      add_rounded_once(sums, squares.select(0, j).narrow(0, first, count), turn == 0 && j == 0, pool);
    lanes.index_copy_(0, places, sums);
  }
}

void Evidence::finish(const at::Tensor& ledger, int64_t elements, const at::Tensor& armed, const at::Tensor& acts) {
  const at::Tensor words = ledger.view({kLedgerRows, kRowWords});
  const at::Tensor counts = by_row(counts_).sum(1);  // (counts, rows)
  words.narrow(1, kWordCounts, kPartialCounts).add_(counts.t() * acts);
  const at::Tensor lanes = at::cat({absolute_.unsqueeze(0), squares_});
  static_assert(kPartialAbs == 0 && kPartialSquaredError == 1 && kPartialSquaredValue == 2 && kPartialRelative == 3);
  const at::Tensor chunks = at::cat({add_chunk_lanes(lanes), relative_.unsqueeze(0)});  // (sums, segments, 256)
  const DigitTensors digits = digits_of(add_tree(chunks.to(at::kDouble).view({-1, kTileChunks})));
  const at::Tensor sums = by_row(digits.digits.view({kPartialSums, traversal_.segments, kDigits})).sum(1);
  words.narrow(1, kWordSums, kPartialSums * kDigits).add_(sums.transpose(0, 1).flatten(1) * acts);
  const at::Tensor overflow = by_row(digits.overflow.to(at::kLong).view({kPartialSums, traversal_.segments}));
  words.select(1, kWordOverflow).bitwise_or_(overflow.amax({0, 1}) * acts);
  const at::Tensor max = by_row(max_.to(at::kDouble).unsqueeze(0)).amax({0, 1}).view(at::kLong) * acts;
  const at::Tensor largest = words.select(1, kWordMax);
  largest.copy_(at::maximum(largest, max));
  const at::Tensor first = words.select(0, 0);
  first.select(0, kWordCalls).add_(armed);
  first.select(0, kWordActive).add_(acts);
  first.select(0, kWordElements).add_(acts * elements);
}

}  // namespace faultline::numeric::portable
