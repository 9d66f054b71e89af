// The short form of block formats on 16-bit tensors: whole blocks, rounded to nearest, no extent. A block is 2 or 4
// neighbouring threads; the largest magnitude is found on packed integers and shared by shuffles. Chunks with a
// non-finite number, and blocks whose scale is zero or must divide, take the general arithmetic out of line. The bits
// are those of the generic kernel.
#pragma once

#include "numeric/arithmetic.h"
#include "numeric/cuda/lanes.cuh"
#include "numeric/cuda/pairs.cuh"
#include "numeric/formats.h"

namespace faultline::numeric::cuda {

struct BlockFormatArguments {
  int64_t elements;
  Control control;
  LifetimeArguments lifetime;
  uint64_t noise_key;
  const UnitRange* tensor;  // nvfp4
  bool normal_scales;
};

FL_HD constexpr Minifloat element_of(FormatKind kind) {
  return kind == FormatKind::kMxfp8E4m3 ? e4m3() : kind == FormatKind::kMxfp8E5m2 ? e5m2() : e2m1();
}
FL_HD constexpr int block_lanes(FormatKind kind) { return kind == FormatKind::kNvfp4 ? 2 : 4; }

template <FormatKind kKind, class Type>
__device__ __noinline__ SettledPair settle_format(uint32_t before, Scale scale) {
  uint32_t stored = before, saturated = 0;
  FormatArguments format;
  format.kind = kKind;
#pragma unroll
  for (int half = 0; half < 32; half += 16) {
    const float x = Type::value(static_cast<uint16_t>(before >> half));
    if (!is_finite(x)) continue;
    bool clipped = false;
    const float y = quantize_value(format, scale, x, 0, clipped);
    saturated += clipped;
    if (!(y == x)) stored = (stored & ~(0xFFFFu << half)) | static_cast<uint32_t>(Type::round(y)) << half;
  }
  SettledPair pair = settle<Type>(before, stored);
  pair.saturated = saturated;
  return pair;
}

// nvfp4's block scales are the 120 normal e4m3 numbers (and, rarely, subnormal ones): what a block multiplies by is
// looked up, and which scale it needs is found by a multiplication whose error is too small to matter away from a tie.
// Ties, subnormal scales and scales whose reciprocal overflows take nvfp4_scale() itself.
inline constexpr uint32_t kFirstScale = (127 - 6) << 3, kScales = 120;

__device__ __noinline__ Scale nvfp4_exact_scale(float amax, Nvfp4Global global, bool normal_scales) {
  return nvfp4_scale(amax, global, normal_scales);
}

__device__ __forceinline__ Scale nvfp4_block_scale(float amax, float per_amax, const float2* table,
                                                   const Nvfp4Global& global, bool normal_scales) {
  const uint32_t bits = __float_as_uint(amax * per_amax), index = ((bits + 0x80000u) >> 20) - kFirstScale;
  const uint32_t from_tie = (bits & 0xFFFFFu) - (0x80000u - 16u);
  if (index < kScales && from_tie > 32u) {
    const float2 entry = table[index];
    if (entry.x > 0.0f) return {entry.x, 0.0f, entry.y, 0.0f};
  }
  return nvfp4_exact_scale(amax, global, normal_scales);
}

// One number through the element format: to_minifloat() without its branches, saturated where a > max.
template <FormatKind kKind>
__device__ __forceinline__ float round_element(float scaled, float back) {
  constexpr Minifloat kElement = element_of(kKind);
  const float clipped = fminf(fabsf(scaled), kElement.max);
  constexpr uint32_t kFloor = static_cast<uint32_t>(kElement.min_exponent + 127) << 23;
  const uint32_t exponent = max(__float_as_uint(clipped) & 0x7F800000u, kFloor);
  const float magic = __uint_as_float(exponent + ((23u - kElement.mantissa_bits) << 23) + 0x400000u);
  const float rounded = __fsub_rn(__fadd_rn(clipped, magic), magic);
  return copysignf(rounded, scaled) * back;
}

template <FormatKind kKind, class Type, bool kLedger>
__global__ void __launch_bounds__(kThreads, kLedger ? 3 : 6)
    block_format_kernel(const __grid_constant__ BlockFormatArguments a, Traversal traversal, uint4* data,
                        Evidence evidence) {
  const Control control = begin(a.control, evidence);
  if (!control.armed) return;
  advance(evidence);
  const bool acts = lifetime_acts(a.lifetime, a.noise_key, control);
  FormatArguments format;
  format.kind = kKind;
  const Nvfp4Global global = nvfp4_global(kKind == FormatKind::kNvfp4 ? a.tensor->amax : 0.0f);
  const float per_amax = 1.0f / 6.0f * global.inverse;
  __shared__ float2 scales[kScales];
  if constexpr (kKind == FormatKind::kNvfp4) {
    if (threadIdx.x < kScales) {
      const float block = __uint_as_float((kFirstScale + threadIdx.x) << 20), multiply = global.inverse / block;
      scales[threadIdx.x] = make_float2(is_finite(multiply) ? multiply : 0.0f, block * global.scale);
    }
    __syncthreads();
  }
  LaneEvidence lane;
  HalfCount changed, nonzero, zeros;
  RareCounts rare;
  uint32_t ordinary_chunks = 0;
  // All threads of a block go through the same tiles: shuffles need whole warps.
  const int64_t stride = traversal.segments * kTileChunks;
  int64_t chunk = static_cast<int64_t>(blockIdx.x) * kTileChunks + threadIdx.x;
  uint4 next = acts && chunk < traversal.chunks ? data[chunk] : make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (int64_t tile = acts ? blockIdx.x : traversal.tiles; tile < traversal.tiles;
       tile += traversal.segments, chunk += stride) {
    const bool exists = chunk < traversal.chunks;
    const uint4 loaded = next;
    if (chunk + stride < traversal.chunks) next = data[chunk + stride];
    uint32_t x[4] = {loaded.x, loaded.y, loaded.z, loaded.w}, y[4];
    bool finite = true;
    uint32_t top = chunk_amax<Type>(x, finite);
#pragma unroll
    for (int offset = 1; offset < block_lanes(kKind); offset *= 2)
      top = max(top, __shfl_xor_sync(kAllLanes, top, offset));
    if (!exists) continue;
    const float amax = Type::value(static_cast<uint16_t>(top));
    const Scale scale = kKind == FormatKind::kNvfp4 ? nvfp4_block_scale(amax, per_amax, scales, global, a.normal_scales)
                                                    : format_scale(format, amax, 0.0f, 0.0f, 0.0f);
    if (finite && scale.multiply > 0.0f) {
      ++ordinary_chunks;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float v0 = Pair<Type>::low(x[k]) * scale.multiply, v1 = Pair<Type>::high(x[k]) * scale.multiply;
        y[k] = Pair<Type>::round(round_element<kKind>(v0, scale.back), round_element<kKind>(v1, scale.back));
        if constexpr (kLedger) {
          lane.saturated += (fabsf(v0) > element_of(kKind).max) + (fabsf(v1) > element_of(kKind).max);
          nonzero.add(differs<Type>(x[k], 0u));
          zeros.add(~differs<Type>(y[k], 0u));
        }
      }
      data[chunk] = make_uint4(y[0], y[1], y[2], y[3]);
    } else {
      uint32_t stored[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const SettledPair pair = settle_format<kKind, Type>(x[k], scale);
        stored[k] = pair.stored, x[k] = pair.x, y[k] = pair.y;
        rare.add(pair.counts);
        lane.saturated += pair.saturated;
      }
      data[chunk] = make_uint4(stored[0], stored[1], stored[2], stored[3]);
    }
    if constexpr (kLedger) add_pairs<Type>(lane, changed, chunk, x, y);
  }
  // A zero stays zero, so what became zero is the zeros after less the zeros before.
  const uint32_t nonzero_count = nonzero.count();
  lane.changed = changed.count() + rare.changed;
  lane.nonzero = nonzero_count + rare.nonzero;
  lane.zeroed = zeros.count() - (ordinary_chunks * kChunk - nonzero_count) + rare.zeroed;
  lane.nonfinite = rare.nonfinite;
  finish<kLedger>(lane, evidence, a.elements, acts);
}

inline bool is_plain_block_format(const QuantizeArguments& q, const void* data) {
  const FormatArguments& f = q.format;
  const bool kind = f.kind == FormatKind::kMxfp4 || f.kind == FormatKind::kMxfp8E4m3 ||
                    f.kind == FormatKind::kMxfp8E5m2 || f.kind == FormatKind::kNvfp4;
  return kind && f.granularity == Granularity::kBlock && !f.stochastic && !f.nan_spreads &&
         q.extent.structure == Structure::kAll && q.rows > 0 && q.columns > 0 && q.columns % f.block == 0 &&
         reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

template <class Type>
void launch_block_format(const QuantizeArguments& q, const Traversal& traversal, void* data, const Evidence& evidence,
                         cudaStream_t stream) {
  const BlockFormatArguments a{q.rows * q.columns, q.control, q.lifetime,
                               q.noise_key,        q.ranges,  q.format.normal_scales};
  auto* chunks = static_cast<uint4*>(data);
#define FL_LAUNCH(kind)                                                                     \
  case FormatKind::kind:                                                                    \
    launch("block_format",                                                                  \
           evidence.ledger != nullptr ? block_format_kernel<FormatKind::kind, Type, true>   \
                                      : block_format_kernel<FormatKind::kind, Type, false>, \
           traversal, stream, a, traversal, chunks, evidence);                              \
    break
  switch (q.format.kind) {
    FL_LAUNCH(kMxfp4);
    FL_LAUNCH(kMxfp8E4m3);
    FL_LAUNCH(kMxfp8E5m2);
    FL_LAUNCH(kNvfp4);
    default: FL_ASSERT(!"not a plain block format");
  }
#undef FL_LAUNCH
}

}  // namespace faultline::numeric::cuda
