// Relative noise on a whole bf16 or fp32 tensor, the most common fault, in one pass. The bits and the ledger are those
// of faults.cpp. Three things make it short: a 32-bit word holds an fp32 element and its deviate's random bits, or two
// neighbouring bf16 elements and two deviates' bits, so that even and odd elements are worked on side by side and
// nothing is shuffled; zeros and non-finite numbers, which are rare, are found by one comparison of many results; and a
// segment is walked column by column, the same positions of each of its tiles after the other, so that the ledger's
// lanes stay at hand, as on a GPU. What a column does, and for which types there is one, is the instruction set's:
// relative_gaussian_avx512.h, relative_gaussian_neon.h.
#pragma once

#include <span>

#if defined(__AVX512BW__)
#include "numeric/cpu/relative_gaussian_avx512.h"
#else
#include "numeric/cpu/relative_gaussian_neon.h"
#endif

namespace faultline::numeric::cpu {
namespace {

constexpr int kGroup = 32;  // chunks that add_tree adds by halving, and that the strength sample takes or leaves

// What is the same for all columns of a call.
template <class Type>
struct Noise {
  Counter counter;
  // By the low eight (fp32: nine) bits of exponent and leading mantissa bits; see deviate_of().
  alignas(64) Segment table[Type::kWidth == 16 ? 256 : 512];
};

template <class Type>
Noise<Type> make_noise(const FaultArguments& a) {
  Noise<Type> noise;
  noise.counter = make_counter(a.control, a.noise_key);
  const float scale = call_scale(a, a.control);
  const auto scaled = [&](const Segment& entry) { return Segment{entry.slope * scale, entry.base * scale}; };
  const auto entries =
      Type::kWidth == 16 ? std::span<const Segment>(kGaussian16) : std::span<const Segment>(kGaussian32);
  Segment* last = std::end(noise.table) - 16;  // exponent 127; the others wrap around
  for (std::size_t i = 0; i < 16; ++i) last[i] = scaled(entries[i]);
  for (std::size_t i = 16; i < entries.size(); ++i) noise.table[i - 16] = scaled(entries[i]);
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
template <class Type>
__attribute__((noinline)) void add_sample(const typename Type::Bits* before, const typename Type::Bits* after,
                                          float* chunks, int64_t& sampled) {
  alignas(64) float relative[kColumn<Type>];
  int count = 0;
  for (int i = 0; i < kColumn<Type>; ++i) {
    const float x = Type::value(before[i]), y = Type::value(after[i]);
    const bool taken = is_normal<Type>(x) & is_finite(y);
    const float error = relative_error(y - x, x);
    relative[i] = taken ? error : 0.0f;
    count += taken;
  }
  sampled += count;
  for (int i = 0; i < kChunk; ++i) {
    for (int chunk = 0; chunk < kColumn<Type> / kChunk; ++chunk)
      chunks[chunk] = fused_multiply_add(relative[chunk * kChunk + i], relative[chunk * kChunk + i], chunks[chunk]);
  }
}

template <bool kCounted, class Type>
inline void fault_whole_column(const Noise<Type>& noise, int64_t begin, typename Type::Bits* values,
                               ColumnLanes<Type>& lanes, SegmentSums& sums) {
  static_assert(kGroup * kChunk % kColumn<Type> == 0);
  constexpr int kPerBlock = 128 / Type::kWidth;  // elements that a block of four words serves
  const int64_t chunk = begin / kChunk;
  const bool sampled = kCounted && is_sampled(chunk);
  alignas(64) typename Type::Bits clean[kColumn<Type>];
  if (__builtin_expect(sampled, 0)) __builtin_memcpy(clean, values, sizeof clean);
  fault_column<kCounted>(noise.counter, noise.table, static_cast<uint64_t>(begin / kPerBlock), values, lanes,
                         sums.counts);
  if (__builtin_expect(sampled, 0))
    add_sample<Type>(clean, values, sums.chunks[kPartialRelative] + chunk % kTileChunks, sums.counts[kCountSampled]);
}

// A column of the last tile that ends within it: what is missing counts as zeros, which add nothing.
template <bool kCounted, class Type>
void fault_last_column(const Noise<Type>& noise, int64_t begin, typename Type::Bits* values, int64_t count,
                       ColumnLanes<Type>& lanes, SegmentSums& sums) {
  alignas(64) typename Type::Bits padded[kColumn<Type>] = {};
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof *values;
  __builtin_memcpy(padded, values, bytes);
  fault_whole_column<kCounted>(noise, begin, padded, lanes, sums);
  __builtin_memcpy(values, padded, bytes);
}

// `positions`: those that the segment's first tile has; its other tiles have no more.
template <bool kCounted, class Type>
void fault_segment(const Noise<Type>& noise, const FaultArguments& a, const Traversal& traversal, int64_t segment,
                   int64_t positions, typename Type::Bits* values, SegmentSums& sums) {
  for (int position = 0; position < positions; position += kColumn<Type>) {
    ColumnLanes<Type> lanes;
    for (int64_t tile = segment; tile < traversal.tiles; tile += traversal.segments) {
      const int64_t begin = tile * kTile + position, left = a.elements - begin;
      if (left >= kColumn<Type>) {
        fault_whole_column<kCounted>(noise, begin, values + begin, lanes, sums);
      } else if (left > 0) {
        fault_last_column<kCounted>(noise, begin, values + begin, left, lanes, sums);
      }
      sums.counts[kCountSelected] += left >= kColumn<Type> ? kColumn<Type> : left > 0 ? left : 0;
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
  return a.kind == FaultKind::kRelativeGaussian && a.extent.structure == Structure::kAll && !a.keyed_by_row &&
         !a.stochastic_rounding;
}

template <class Type>
void relative_gaussian_segments(const FaultArguments& a, const Traversal& traversal, int64_t first, int64_t last,
                                void* data, SegmentPartial* partials) {
  const Noise noise = make_noise<Type>(a);
  auto* values = static_cast<typename Type::Bits*>(data);
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
}  // namespace faultline::numeric::cpu
