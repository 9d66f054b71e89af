// Two 16-bit values in a register: the short kernels of 16-bit tensors work on pairs. On Hopper the integer pipe runs
// at half the rate of the floating-point pipes and is their busiest one (54 % with memory latency as the longest stall,
// by ncu), so the rules are: keep values packed, decide about rare cases once per chunk, put what is rare out of line.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "numeric/cuda/evidence.cuh"

namespace faultline::numeric::cuda {

template <class Type>
struct Pair;

template <>
struct Pair<BFloat16> {
  static __device__ __forceinline__ __nv_bfloat162 packed(uint32_t word) {
    return reinterpret_cast<const __nv_bfloat162&>(word);
  }
  static __device__ __forceinline__ float low(uint32_t word) { return __uint_as_float(word << 16); }
  static __device__ __forceinline__ float high(uint32_t word) { return __uint_as_float(word & 0xFFFF0000u); }
  static __device__ __forceinline__ uint32_t round(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};

template <>
struct Pair<Float16> {
  static __device__ __forceinline__ __half2 packed(uint32_t word) { return reinterpret_cast<const __half2&>(word); }
  static __device__ __forceinline__ float low(uint32_t word) { return __low2float(packed(word)); }
  static __device__ __forceinline__ float high(uint32_t word) { return __high2float(packed(word)); }
  static __device__ __forceinline__ uint32_t round(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};

// 0xFFFF in each half where a and b differ (neither is NaN).
template <class Type>
__device__ __forceinline__ uint32_t differs(uint32_t a, uint32_t b) {
  return __hne2_mask(Pair<Type>::packed(a), Pair<Type>::packed(b));
}

// The largest finite magnitude of a chunk, as bits; `finite`: whether all eight are.
template <class Type>
__device__ __forceinline__ uint32_t chunk_amax(const uint32_t (&x)[4], bool& finite) {
  const uint32_t largest =
      __vmaxu2(__vmaxu2(x[0] & 0x7FFF7FFFu, x[1] & 0x7FFF7FFFu), __vmaxu2(x[2] & 0x7FFF7FFFu, x[3] & 0x7FFF7FFFu));
  uint32_t top = max(largest & 0xFFFFu, largest >> 16);
  finite = top < Type::kInf;
  if (!finite) {
    top = 0;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const uint32_t magnitude = (x[j >> 1] >> 16 * (j & 1)) & 0x7FFFu;
      if (magnitude < Type::kInf) top = max(top, magnitude);
    }
  }
  return top;
}

// Counts halves: each mask of differs() takes 0xFFFF or 0xFFFF0000 away, so the low half of the total counts the low
// ones, the high half high less low. Good for 65,535 of each.
struct HalfCount {
  uint32_t total = 0;
  __device__ __forceinline__ void add(uint32_t mask) { total -= mask; }
  __device__ __forceinline__ uint32_t count() const {
    const uint32_t low = total & 0xFFFFu;
    return low + (((total >> 16) + low) & 0xFFFFu);
  }
};

// The strength sample of one chunk: out of line, because only one chunk in 64 needs it.
struct ChunkSample {
  float relative;
  uint32_t sampled;
};
template <class Type>
__device__ __noinline__ ChunkSample sample_chunk(ChunkSample sum, uint4 x, uint4 y) {
  const uint32_t before[4] = {x.x, x.y, x.z, x.w}, after[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const uint32_t half = 16 * (j & 1);
    const float value = Type::value(static_cast<uint16_t>(before[j >> 1] >> half)),
                result = Type::value(static_cast<uint16_t>(after[j >> 1] >> half));
    const bool normal = is_normal<Type>(value);  // neither zero nor settled
    const float relative = normal ? relative_error(result - value, value) : 0.0f;
    sum = {__fmaf_rn(relative, relative, sum.relative), sum.sampled + (normal ? 1u : 0u)};
  }
  return sum;
}

// A chunk's evidence from pairs that hold finite numbers only (others are zero in both).
template <class Type>
__device__ __forceinline__ void add_pairs(LaneEvidence& lane, HalfCount& changed, int64_t chunk, const uint32_t (&x)[4],
                                          const uint32_t (&y)[4]) {
  lane.selected += kChunk;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const float before = j & 1 ? Pair<Type>::high(x[j >> 1]) : Pair<Type>::low(x[j >> 1]);
    const float after = j & 1 ? Pair<Type>::high(y[j >> 1]) : Pair<Type>::low(y[j >> 1]);
    const float e = after - before;
    lane.sum_abs[j] += fabsf(e);
    lane.sum_squared_error[j] = __fmaf_rn(e, e, lane.sum_squared_error[j]);
    lane.sum_squared_value[j] = __fmaf_rn(before, before, lane.sum_squared_value[j]);
    lane.max = fmaxf(lane.max, fabsf(e));
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) changed.add(differs<Type>(x[k], y[k]));
  if (is_sampled(chunk)) {
    const ChunkSample sum = sample_chunk<Type>({lane.relative, lane.sampled}, make_uint4(x[0], x[1], x[2], x[3]),
                                               make_uint4(y[0], y[1], y[2], y[3]));
    lane.relative = sum.relative, lane.sampled = sum.sampled;
  }
}

// A pair with something rare in it, settled: `stored` goes to memory; in `x` and `y` what must not enter the sums is
// zero. Passed by value, so that the caller's pairs stay in registers.
struct SettledPair {
  uint32_t stored, x, y;
  uint32_t saturated;  // elements clipped by a format
  uint32_t counts;     // a byte each: nonzero, zeroed, nonfinite, changed among the non-finite
};

template <class Type>
__device__ __forceinline__ SettledPair settle(uint32_t before, uint32_t stored) {
  SettledPair pair{stored, before, stored, 0, 0};
#pragma unroll
  for (int half = 0; half < 32; half += 16) {
    const uint32_t old = (before >> half) & 0xFFFFu, bits = (stored >> half) & 0xFFFFu, mask = 0xFFFFu << half;
    const float value = Type::value(static_cast<uint16_t>(old)), result = Type::value(static_cast<uint16_t>(bits));
    const bool finite = is_finite(value) && is_finite(result);
    pair.counts += (value != 0.0f ? 1u : 0u) | (value != 0.0f && result == 0.0f ? 1u << 8 : 0u) |
                   (is_finite(result) ? 0u : 1u << 16) | (!finite && bits != old ? 1u << 24 : 0u);
    if (!finite) pair.x &= ~mask, pair.y &= ~mask;
  }
  return pair;
}

struct RareCounts {
  uint32_t nonzero = 0, zeroed = 0, nonfinite = 0, changed = 0;
  __device__ __forceinline__ void add(uint32_t counts) {
    nonzero += counts & 0xFFu, zeroed += counts >> 8 & 0xFFu, nonfinite += counts >> 16 & 0xFFu,
        changed += counts >> 24;
  }
};

}  // namespace faultline::numeric::cuda
