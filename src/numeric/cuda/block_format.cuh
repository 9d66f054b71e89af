// The short form of block formats on 16-bit tensors: whole blocks, rounded to nearest, no extent. A block is 2 or 4
// neighbouring threads; the largest magnitude is found on packed integers and shared by shuffles. Chunks with a
// non-finite number, and blocks whose scale is zero or must divide, take the general arithmetic out of line. The bits
// are those of the generic kernel.
#pragma once

#include "numeric/arithmetic.h"
#include "numeric/cuda/pairs.cuh"
#include "numeric/formats.h"

namespace faultline::cuda {

struct BlockFormatArguments {
  int64_t elements;
  Control control;
  LifetimeArguments lifetime;
  const UnitRange* tensor;  // nvfp4
  bool normal_scales;
};

FL_HD constexpr Minifloat element_of(FormatKind kind) {
  return kind == FormatKind::kMxfp8E4m3 ? e4m3() : kind == FormatKind::kMxfp8E5m2 ? e5m2() : e2m1();
}
FL_HD constexpr int block_lanes(FormatKind kind) {
  return kind == FormatKind::kNvfp4 || kind == FormatKind::kNvfp4Single ? 2 : 4;
}

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
  const Control control = evidence.control != nullptr ? started(*evidence.control) : a.control;
  if (!control.armed) return;
  FaultArguments life;
  life.lifetime = a.lifetime.kind, life.probability = a.lifetime.probability, life.noise_key = a.lifetime.noise_key;
  life.window_from = a.lifetime.from, life.window_to = a.lifetime.to;
  const bool acts = lifetime_acts(life, control);
  FormatArguments format;
  format.kind = kKind;
  const Nvfp4Global global = nvfp4_global(kKind == FormatKind::kNvfp4 ? a.tensor->amax : 0.0f);
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
    uint32_t largest = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) largest = __vmaxu2(largest, x[k] & 0x7FFF7FFFu);
    uint32_t top = max(largest & 0xFFFFu, largest >> 16);
    const bool finite = top < Type::kInf;
    if (!finite) {
      top = 0;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const uint32_t magnitude = (x[j >> 1] >> 16 * (j & 1)) & 0x7FFFu;
        if (magnitude < Type::kInf) top = max(top, magnitude);
      }
    }
#pragma unroll
    for (int offset = 1; offset < block_lanes(kKind); offset *= 2)
      top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, offset));
    if (!exists) continue;
    const float amax = Type::value(static_cast<uint16_t>(top));
    const Scale scale = kKind == FormatKind::kNvfp4 ? nvfp4_scale(amax, global, a.normal_scales)
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
  const BlockFormatArguments a{q.rows * q.columns,
                               q.control,
                               {q.lifetime, q.probability, q.window_from, q.window_to, q.noise_key},
                               q.ranges,
                               q.format.normal_scales};
  const unsigned blocks = static_cast<unsigned>(traversal.segments);
  auto* chunks = static_cast<uint4*>(data);
#define FL_LAUNCH(kind)                                                      \
  case FormatKind::kind:                                                     \
    if (evidence.ledger != nullptr) {                                        \
      block_format_kernel<FormatKind::kind, Type, true>                      \
          <<<blocks, kThreads, 0, stream>>>(a, traversal, chunks, evidence); \
    } else {                                                                 \
      block_format_kernel<FormatKind::kind, Type, false>                     \
          <<<blocks, kThreads, 0, stream>>>(a, traversal, chunks, evidence); \
    }                                                                        \
    break
  switch (q.format.kind) {
    FL_LAUNCH(kMxfp4);
    FL_LAUNCH(kMxfp8E4m3);
    FL_LAUNCH(kMxfp8E5m2);
    FL_LAUNCH(kNvfp4);
    default: FL_ASSERT(!"not a plain block format");
  }
#undef FL_LAUNCH
  check_launch("block_format");
}

}  // namespace faultline::cuda
