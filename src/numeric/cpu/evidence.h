// The ledger's lanes on a CPU: arrays over a tile's positions, so that the loop that fills them vectorises. See
// ledger.h for the order of additions, which the CUDA kernels share.
#pragma once

#include "numeric/dtype.h"
#include "numeric/ledger.h"

namespace faultline::numeric::cpu {
namespace {

template <class Type>
struct Tile {
  using Value = typename Type::Value;
  using Bits = typename Type::Bits;
  alignas(64) Value x[kTile];
  alignas(64) Value y[kTile];
  alignas(64) Bits before[kTile];
  alignas(64) Bits after[kTile];
  alignas(64) uint8_t selected[kTile];
  alignas(64) uint8_t saturated[kTile];
};

template <class Value>
struct Lanes {
  alignas(64) Value sum_abs[kTile];
  alignas(64) Value sum_squared_error[kTile];
  alignas(64) Value sum_squared_value[kTile];
  alignas(64) Value max[kTile];
  alignas(64) Value relative[kTileChunks];
  int64_t selected, changed, nonzero, zeroed, nonfinite, saturated, sampled;
};

// kFirst: the segment's first tile writes the lanes instead of adding to zeros.
template <bool kFirst, class Type>
void add_sums(const Tile<Type>& tile, int count, Lanes<typename Type::Value>& lanes) {
  using Value = typename Type::Value;
#pragma GCC ivdep
  for (int i = 0; i < count; ++i) {
    const Value x = tile.x[i], y = tile.y[i];
    const bool finite = is_finite(x) & is_finite(y);
    const Value e = finite ? y - x : Value{0};
    const Value clean = finite ? x : Value{0};
    lanes.sum_abs[i] = kFirst ? magnitude(e) : lanes.sum_abs[i] + magnitude(e);
    lanes.sum_squared_error[i] = kFirst ? e * e : fused_multiply_add(e, e, lanes.sum_squared_error[i]);
    lanes.sum_squared_value[i] = kFirst ? clean * clean : fused_multiply_add(clean, clean, lanes.sum_squared_value[i]);
    lanes.max[i] = kFirst || magnitude(e) > lanes.max[i] ? magnitude(e) : lanes.max[i];
  }
  if constexpr (kFirst) {
    for (int i = count; i < kTile; ++i) {
      lanes.sum_abs[i] = lanes.sum_squared_error[i] = lanes.sum_squared_value[i] = lanes.max[i] = 0;
    }
  }
}

template <class Type>
void add_counts(const Tile<Type>& tile, int count, Lanes<typename Type::Value>& lanes) {
  uint32_t selected = 0, changed = 0, nonzero = 0, zeroed = 0, nonfinite = 0, saturated = 0;
  for (int i = 0; i < count; ++i) {
    const bool zero_before = tile.x[i] == 0, zero_after = tile.y[i] == 0;
    selected += tile.selected[i];
    saturated += tile.saturated[i];
    changed += tile.before[i] != tile.after[i];
    nonzero += !zero_before;
    zeroed += !zero_before & zero_after;
    nonfinite += !is_finite(tile.y[i]);
  }
  lanes.selected += selected;
  lanes.changed += changed;
  lanes.nonzero += nonzero;
  lanes.zeroed += zeroed;
  lanes.nonfinite += nonfinite;
  lanes.saturated += saturated;
}

template <class Type>
void add_sample(const Tile<Type>& tile, int count, int64_t first_chunk, Lanes<typename Type::Value>& lanes) {
  for (int group = 0; group < kTileChunks; group += 32) {  // a group of 32 chunks is in the sample or not
    if (!is_sampled(first_chunk + group)) continue;
    for (int i = group * kChunk; i < (group + 32) * kChunk && i < count; ++i) {
      const auto x = tile.x[i], y = tile.y[i];
      if (!tile.selected[i] || !is_normal<Type>(x) || !is_finite(y)) continue;
      const auto relative = relative_error(y - x, x);
      auto& sum = lanes.relative[i / kChunk];
      sum = fused_multiply_add(relative, relative, sum);
      ++lanes.sampled;
    }
  }
}

// Neighbours are added level by level (the order of add_chunk_lanes) over whole arrays, which vectorises.
template <class Value>
double add_lanes(const Value* lane) {
  alignas(64) Value pair[kTile / 2];
  alignas(64) Value quad[kTile / 4];
  alignas(64) double value[kTileChunks];
  for (int i = 0; i < kTile / 2; ++i) pair[i] = lane[2 * i] + lane[2 * i + 1];
  for (int i = 0; i < kTile / 4; ++i) quad[i] = pair[2 * i] + pair[2 * i + 1];
  for (int i = 0; i < kTileChunks; ++i) value[i] = static_cast<double>(quad[2 * i] + quad[2 * i + 1]);
  return add_tree(value);
}

template <class Value>
Value largest_lane(const Value* lane) {
  constexpr int kColumns = 64;
  alignas(64) Value largest[kColumns] = {};
  for (int row = 0; row < kTile; row += kColumns) {
    for (int i = 0; i < kColumns; ++i) largest[i] = lane[row + i] > largest[i] ? lane[row + i] : largest[i];
  }
  Value all = 0;
  for (const Value value : largest) all = value > all ? value : all;
  return all;
}

// One tile of a segment.
template <class Type>
void add_tile(const Tile<Type>& tile, int count, int64_t first_chunk, bool first, Lanes<typename Type::Value>& lanes) {
  if (first) {
    add_sums<true>(tile, count, lanes);
    __builtin_memset(lanes.relative, 0, sizeof lanes.relative);
    lanes.selected = lanes.changed = lanes.nonzero = lanes.zeroed = lanes.nonfinite = lanes.saturated = lanes.sampled =
        0;
  } else {
    add_sums<false>(tile, count, lanes);
  }
  add_counts(tile, count, lanes);
  add_sample(tile, count, first_chunk, lanes);
}

template <class Value>
void write_partial(const Lanes<Value>& lanes, SegmentPartial& partial) {
  partial.sum[kPartialAbs] = add_lanes(lanes.sum_abs);
  partial.sum[kPartialSquaredError] = add_lanes(lanes.sum_squared_error);
  partial.sum[kPartialSquaredValue] = add_lanes(lanes.sum_squared_value);
  double relative[kTileChunks];
  for (int chunk = 0; chunk < kTileChunks; ++chunk) relative[chunk] = static_cast<double>(lanes.relative[chunk]);
  partial.sum[kPartialRelative] = add_tree(relative);
  partial.max = static_cast<double>(largest_lane(lanes.max));
  const int64_t counts[kPartialCounts] = {lanes.selected,  lanes.changed,   lanes.nonzero, lanes.zeroed,
                                          lanes.nonfinite, lanes.saturated, lanes.sampled};
  for (int k = 0; k < kPartialCounts; ++k) partial.count[k] = static_cast<uint64_t>(counts[k]);
  partial.struck = 0;
}

}  // namespace
}  // namespace faultline::numeric::cpu
