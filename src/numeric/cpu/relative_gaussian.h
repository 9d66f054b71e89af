// Relative noise on a whole bf16 tensor, the most common fault, in one pass. The bits and the ledger are those of
// faults.cpp. Three things make it short: a 32-bit word holds two neighbouring elements and also two deviates' random
// bits, so that even and odd elements are worked on side by side and nothing is shuffled; zeros and non-finite numbers,
// which are rare, are found by one comparison of many results; and a segment is walked column by column, the same
// positions of each of its tiles after the other, so that the ledger's lanes stay at hand, as on a GPU. What a column
// does is the instruction set's: relative_gaussian_avx512.h, relative_gaussian_neon.h.
#pragma once

#if defined(__AVX512BW__)
#include "numeric/cpu/relative_gaussian_avx512.h"
#else
#include "numeric/cpu/relative_gaussian_neon.h"
#endif

namespace faultline::cpu {
namespace {

constexpr int kGroup = 32;  // chunks that add_tree adds by halving, and that the strength sample takes or leaves
static_assert(kGroup * kChunk % kColumn == 0);

// What is the same for all columns of a call.
struct Noise {
  Counter counter;
  alignas(64) Segment table[256];  // by the low eight bits of exponent and leading mantissa bits; see deviate_of()
};

Noise make_noise(const FaultArguments& a) {
  Noise noise;
  noise.counter = make_counter(a.control, a.noise_key);
  const float scale = call_scale(a, a.control);
  const auto scaled = [&](const Segment& entry) { return Segment{entry.slope * scale, entry.base * scale}; };
  for (int i = 0; i < 16; ++i) noise.table[240 + i] = scaled(kGaussian16[i]);  // exponent 127; the others wrap around
  for (int i = 16; i < kSegments16; ++i) noise.table[i - 16] = scaled(kGaussian16[i]);
  return noise;
}

// What a segment adds up; chunks are those of a tile.
struct SegmentSums {
  alignas(64) float chunks[kPartialSums][kTileChunks];
  Vector max;
  int64_t counts[kPartialCounts];
};

void clear(SegmentSums& sums, int groups) {
  for (float* chunks : sums.chunks)
    __builtin_memset(chunks, 0, static_cast<std::size_t>(groups) * kGroup * sizeof(float));
  sums.max = Vector{};
  for (int64_t& count : sums.counts) count = 0;
}

// The strength sample, for a column that is in it. Each chunk adds its elements in order.
__attribute__((noinline)) void add_sample(const uint16_t* before, const uint16_t* after, float* chunks,
                                          int64_t& sampled) {
  alignas(64) float relative[kColumn];
  int count = 0;
  for (int i = 0; i < kColumn; ++i) {
    const float x = BFloat16::value(before[i]), y = BFloat16::value(after[i]);
    const bool taken = is_normal<BFloat16>(x) & is_finite(y);
    const float error = relative_error(y - x, x);
    relative[i] = taken ? error : 0.0f;
    count += taken;
  }
  sampled += count;
  for (int i = 0; i < kChunk; ++i) {
    for (int chunk = 0; chunk < kColumn / kChunk; ++chunk)
      chunks[chunk] = fused_multiply_add(relative[chunk * kChunk + i], relative[chunk * kChunk + i], chunks[chunk]);
  }
}

template <bool kCounted>
inline void fault_whole_column(const Noise& noise, int64_t begin, uint16_t* values, ColumnLanes& lanes,
                               SegmentSums& sums) {
  const int64_t chunk = begin / kChunk;
  const bool sampled = kCounted && is_sampled(chunk);
  alignas(64) uint16_t clean[kColumn];
  if (__builtin_expect(sampled, 0)) __builtin_memcpy(clean, values, sizeof clean);
  fault_column<kCounted>(noise.counter, noise.table, static_cast<uint64_t>(chunk), values, lanes, sums.counts);
  if (__builtin_expect(sampled, 0))
    add_sample(clean, values, sums.chunks[kPartialRelative] + chunk % kTileChunks, sums.counts[kCountSampled]);
}

// A column of the last tile that ends within it: what is missing counts as zeros, which add nothing.
template <bool kCounted>
void fault_last_column(const Noise& noise, int64_t begin, uint16_t* values, int64_t count, ColumnLanes& lanes,
                       SegmentSums& sums) {
  alignas(64) uint16_t padded[kColumn] = {};
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(uint16_t);
  __builtin_memcpy(padded, values, bytes);
  fault_whole_column<kCounted>(noise, begin, padded, lanes, sums);
  __builtin_memcpy(values, padded, bytes);
}

// `positions`: those that the segment's first tile has; its other tiles have no more.
template <bool kCounted>
void fault_segment(const Noise& noise, const FaultArguments& a, const Traversal& traversal, int64_t segment,
                   int64_t positions, uint16_t* values, SegmentSums& sums) {
  for (int position = 0; position < positions; position += kColumn) {
    ColumnLanes lanes;
    for (int64_t tile = segment; tile < traversal.tiles; tile += traversal.segments) {
      const int64_t begin = tile * kTile + position, left = a.elements - begin;
      if (left >= kColumn) {
        fault_whole_column<kCounted>(noise, begin, values + begin, lanes, sums);
      } else if (left > 0) {
        fault_last_column<kCounted>(noise, begin, values + begin, left, lanes, sums);
      }
      sums.counts[kCountSelected] += left >= kColumn ? kColumn : left > 0 ? left : 0;
    }
    if constexpr (kCounted) {
      const int chunk = position / kChunk;
      write_chunks(lanes.abs, sums.chunks[kPartialAbs] + chunk);
      write_chunks(lanes.squared_error, sums.chunks[kPartialSquaredError] + chunk);
      write_chunks(lanes.squared_value, sums.chunks[kPartialSquaredValue] + chunk);
      for (const Vector& max : lanes.max) sums.max = larger(sums.max, max);
    }
  }
}

// 256 -> 1 in the order of add_tree; groups that hold no element would add zeros.
void write_partial(const SegmentSums& sums, int groups, SegmentPartial& partial) {
  for (int k = 0; k < kPartialSums; ++k) {
    partial.sum[k] = 0;
    for (int group = 0; group < groups; ++group) partial.sum[k] += add_group(sums.chunks[k] + group * kGroup);
  }
  partial.max = static_cast<double>(largest(sums.max));
  for (int k = 0; k < kPartialCounts; ++k) partial.count[k] = static_cast<uint64_t>(sums.counts[k]);
}

bool is_plain_relative_gaussian(const FaultArguments& a) {
  return a.kind == FaultKind::kRelativeGaussian && a.dtype == Dtype::kBFloat16 &&
         a.extent.structure == Structure::kAll && !a.keyed_by_row && !a.stochastic_rounding;
}

void relative_gaussian_segments(const FaultArguments& a, const Traversal& traversal, int64_t first, int64_t last,
                                void* data, SegmentPartial* partials) {
  const Noise noise = make_noise(a);
  auto* values = static_cast<uint16_t*>(data);
  SegmentSums sums;
  for (int64_t segment = first; segment < last && segment < traversal.tiles; ++segment) {
    const int64_t left = a.elements - segment * kTile, positions = left < kTile ? left : kTile;
    const int groups = static_cast<int>((positions + kGroup * kChunk - 1) / (kGroup * kChunk));
    clear(sums, partials == nullptr ? 0 : groups);
    if (partials == nullptr) {
      fault_segment<false>(noise, a, traversal, segment, positions, values, sums);
    } else {
      fault_segment<true>(noise, a, traversal, segment, positions, values, sums);
      write_partial(sums, groups, partials[segment]);
    }
  }
}

}  // namespace
}  // namespace faultline::cpu
