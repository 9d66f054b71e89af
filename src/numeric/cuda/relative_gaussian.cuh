// The short form of the commonest fault: relative noise on a whole 16-bit tensor, keyed by element, rounded to nearest.
// A chunk whose results are all finite and nonzero (which implies the same of its inputs) is accounted without asking
// each element. The bits are those of the generic kernel.
#pragma once

#include "numeric/arithmetic.h"
#include "numeric/cuda/pairs.cuh"

namespace faultline::numeric::cuda {

// What the kernel needs of FaultArguments: small, because arguments are part of a launch's cost.
struct RelativeGaussianArguments {
  int64_t elements;
  Control control;
  PhiloxKeys keys;
  LifetimeArguments lifetime;
  uint64_t noise_key;
};

// The table in shared memory is addressed by the top 13 bits of a deviate's word as a float, sign included: entries of
// positive words from here, of negative ones kNegative later. Words enter times 2^16, which saves their extraction.
inline constexpr uint32_t kFirstEntry = (127 + 16) << 4, kNegative = 1 << 12;

__device__ __forceinline__ float scaled_deviate(uint32_t odd_shifted, const Segment* table) {
  const float value = static_cast<float>(static_cast<int32_t>(odd_shifted));
  const Segment segment = table[__umulhi(__float_as_uint(value), 1u << 13) - kFirstEntry];
  return __fmaf_rn(value, segment.slope, segment.base);
}

template <class Type>
__device__ __noinline__ SettledPair settle_noise(uint32_t before, uint32_t after) {
#pragma unroll
  for (int half = 0; half < 32; half += 16) {
    const uint32_t old = (before >> half) & 0xFFFFu;
    const float value = Type::value(static_cast<uint16_t>(old));
    if (!is_finite(value) || value == 0.0f) after = (after & ~(0xFFFFu << half)) | (old << half);
  }
  return settle<Type>(before, after);
}

template <class Type, bool kLedger>
__global__ void __launch_bounds__(kThreads, kLedger ? 3 : 6)
    relative_gaussian_kernel(const __grid_constant__ RelativeGaussianArguments a, Traversal traversal, uint4* data,
                             const Segment* deviates, Evidence evidence) {
  __shared__ Segment shared_table[kNegative + kSegments16];
  static_assert(kSegments16 <= kThreads);
  const Segment entry = threadIdx.x < kSegments16 ? deviates[threadIdx.x] : Segment{0, 0};
  const Control control = begin(a.control, evidence);
  if (!control.armed) return;
  const int64_t stride = traversal.segments * kTileChunks;
  int64_t chunk = static_cast<int64_t>(blockIdx.x) * kTileChunks + threadIdx.x;
  uint4 loaded = chunk < traversal.chunks ? data[chunk] : make_uint4(0, 0, 0, 0);
  if (threadIdx.x < kSegments16) {
    const float slope = entry.slope * control.strength * 0x1p-16f, base = entry.base * control.strength;
    shared_table[threadIdx.x] = {slope, base};
    shared_table[kNegative + threadIdx.x] = {slope, -base};
  }
  const bool acts = lifetime_acts(a.lifetime, a.noise_key, control);
  advance(evidence);
  const uint32_t tag = counter_tag(control, kGaussianStream);
  LaneEvidence lane;
  HalfCount changed;
  RareCounts rare;
  const int64_t end = acts ? traversal.chunks : 0;
#pragma unroll 1
  for (; chunk < end; chunk += stride) {
    uint32_t x[4] = {loaded.x, loaded.y, loaded.z, loaded.w}, y[4];
    if (chunk + stride < end) loaded = data[chunk + stride];
    const PhiloxWords words = philox(static_cast<uint32_t>(chunk), static_cast<uint32_t>(chunk >> 32) | tag,
                                     control.call, control.step, a.keys);
    uint32_t extreme = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t odd = words.word[k] | 0x00010001u;
      const float x0 = Pair<Type>::low(x[k]), x1 = Pair<Type>::high(x[k]);
      const float g0 = scaled_deviate(odd << 16, shared_table), g1 = scaled_deviate(odd & 0xFFFF0000u, shared_table);
      y[k] = Pair<Type>::round(__fmaf_rn(g0, x0, x0), __fmaf_rn(g1, x1, x1));
      extreme = __vmaxu2(extreme, (y[k] & 0x7FFF7FFFu) - 0x00010001u);  // a zero wraps to the top
    }
    constexpr uint32_t kLast = Type::kInf - 2;  // the largest finite number, less one
    if (__vmaxu2(extreme, kLast | kLast << 16) == (kLast | kLast << 16)) {
      data[chunk] = make_uint4(y[0], y[1], y[2], y[3]);
      rare.nonzero += kChunk;
    } else {
      uint32_t stored[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const SettledPair pair = settle_noise<Type>(x[k], y[k]);
        stored[k] = pair.stored, x[k] = pair.x, y[k] = pair.y;
        rare.add(pair.counts);
      }
      data[chunk] = make_uint4(stored[0], stored[1], stored[2], stored[3]);
    }
    if constexpr (kLedger) add_pairs<Type>(lane, changed, chunk, x, y);
  }
  lane.changed = changed.count() + rare.changed;
  lane.nonzero = rare.nonzero, lane.zeroed = rare.zeroed, lane.nonfinite = rare.nonfinite;
  finish<kLedger>(lane, evidence, a.elements, acts);
}

// Whether this call has the short form.
inline bool is_plain_relative_gaussian(const FaultArguments& a, const void* data) {
  return a.kind == FaultKind::kRelativeGaussian && a.extent.structure == Structure::kAll && !a.keyed_by_row &&
         !a.stochastic_rounding && a.elements % kChunk == 0 && a.elements > 0 &&
         reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

template <class Type>
void launch_relative_gaussian(const FaultArguments& full, const Traversal& traversal, void* data, const Segment* table,
                              const Evidence& evidence, cudaStream_t stream) {
  const RelativeGaussianArguments a{full.elements, full.control, philox_keys(full.noise_key), full.lifetime,
                                    full.noise_key};
  const auto kernel =
      evidence.ledger != nullptr ? relative_gaussian_kernel<Type, true> : relative_gaussian_kernel<Type, false>;
  launch("relative_gaussian", kernel, traversal, stream, a, traversal, static_cast<uint4*>(data), table, evidence);
}

}  // namespace faultline::numeric::cuda
