// The short form of common block formats on 16-bit tensors: whole blocks, rounded to nearest, no extent. A block is 2
// to 16 neighbouring threads; the largest magnitude is found on packed integers and shared by shuffles. Chunks with a
// non-finite number, and blocks whose scale is zero or far from one, take the general arithmetic out of line. The bits
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

enum class Plain { kMxfp4, kMxfp6E2m3, kMxfp6E3m2, kMxint8, kMxfp8E4m3, kMxfp8E5m2, kNvfp4, kFp8Block, kNf4, kNone };

FL_HD constexpr FormatArguments plain_format(Plain plain) {
  FormatArguments f;
  switch (plain) {
    case Plain::kMxfp6E2m3: f.grid = e2m3(), f.top_exponent = 2; break;
    case Plain::kMxfp6E3m2: f.grid = e3m2(), f.top_exponent = 4; break;
    case Plain::kMxint8: f.grid = {6, 0, 127.0f / 64.0f}, f.top_exponent = 0; break;
    case Plain::kMxfp8E4m3: f.grid = e4m3(), f.top_exponent = 8; break;
    case Plain::kMxfp8E5m2: f.grid = e5m2(), f.top_exponent = 15; break;
    case Plain::kNvfp4: f.scale = ScaleRule::kNarrow, f.block = 16, f.second_level = true; break;
    case Plain::kFp8Block: f.scale = ScaleRule::kQuotient, f.grid = e4m3(), f.top = 448, f.block = 128; break;
    case Plain::kNf4: f.element = ElementRule::kLevels, f.scale = ScaleRule::kQuotient, f.top = 1, f.block = 64; break;
    default: f.top_exponent = 2; break;
  }
  return f;
}
FL_HD constexpr int block_lanes(Plain plain) { return plain_format(plain).block / kChunk; }

template <Plain kPlain, class Type>
__device__ __noinline__ SettledPair settle_format(uint32_t before, Scale scale) {
  uint32_t stored = before, saturated = 0;
  constexpr FormatArguments format = plain_format(kPlain);
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

__device__ __noinline__ Scale nvfp4_exact_scale(float amax, TensorScale tensor, bool normal_scales) {
  FormatArguments format = plain_format(Plain::kNvfp4);
  format.normal_scales = normal_scales;
  return format_scale(format, amax, tensor, 0.0f, 0.0f);
}

__device__ __forceinline__ Scale nvfp4_block_scale(float amax, float per_amax, const float2* table,
                                                   const TensorScale& tensor, bool normal_scales) {
  const uint32_t bits = __float_as_uint(amax * per_amax), index = ((bits + 0x80000u) >> 20) - kFirstScale;
  const uint32_t from_tie = (bits & 0xFFFFFu) - (0x80000u - 16u);
  if (index < kScales && from_tie > 32u) {
    const float2 entry = table[index];
    if (entry.x > 0.0f) return {entry.x, 0.0f, entry.y, 0.0f};
  }
  return nvfp4_exact_scale(amax, tensor, normal_scales);
}

// x / divisor, correctly rounded (Markstein) for divisors in (2^-60, 2^60) and their correctly rounded inverses; where
// x is so small that the correction underflows, every format here gives zero. The sign of a zero may be lost.
__device__ __forceinline__ float quotient(float x, float divisor, float inverse) {
  const float near = x * inverse;
  return __fmaf_rn(__fmaf_rn(-near, divisor, x), inverse, near);
}

// NF4's look-up: [-1, 1] in 32 bins, none with more than one boundary in it, and none of the boundaries so near to a
// bin's end that the rounding of the bin's number could matter. Each table lies in the banks of shared memory once.
struct LevelTable {
  float boundary[32];  // infinite: none
  uint32_t index[32];  // below it
  float level[kLevelCount];

  __device__ void fill(int i) {
    if (i < kLevelCount) level[i] = numeric::level(Levels::kNf4, i);
    if (i >= 32) return;
    const float first = static_cast<float>(i) / 16.0f - 1.0f, last = first + 1.0f / 16.0f;
    uint32_t below = 0;
    while (below + 1 < kLevelCount && level_middle(Levels::kNf4, static_cast<int>(below)) < first) ++below;
    const float middle = below + 1 < kLevelCount ? level_middle(Levels::kNf4, static_cast<int>(below)) : INFINITY;
    boundary[i] = middle < last ? middle : INFINITY;
    index[i] = below;
  }
  __device__ __forceinline__ float nearest(float x) const {  // -1 … 1
    const int bin = min(static_cast<int>(__fmaf_rn(x, 16.0f, 16.0f)), 31);
    return level[index[bin] + (x > boundary[bin] ? 1u : 0u)];
  }
};

// One number through the element format: to_minifloat() without its branches, saturated where a > max.
template <Plain kPlain>
__device__ __forceinline__ float round_element(float scaled, float sign, float back) {
  constexpr Minifloat kElement = plain_format(kPlain).grid;
  const float clipped = fminf(fabsf(scaled), kElement.max);
  constexpr uint32_t kFloor = static_cast<uint32_t>(kElement.min_exponent + 127) << 23;
  const uint32_t exponent = max(__float_as_uint(clipped) & 0x7F800000u, kFloor);
  const float magic = __uint_as_float(exponent + ((23u - kElement.mantissa_bits) << 23) + 0x400000u);
  const float rounded = __fsub_rn(__fadd_rn(clipped, magic), magic);
  return copysignf(rounded, sign) * back;
}

template <Plain kPlain, class Type, bool kLedger>
__global__ void __launch_bounds__(kThreads, kLedger ? 3 : 6)
    block_format_kernel(const __grid_constant__ BlockFormatArguments a, Traversal traversal, uint4* data,
                        Evidence evidence) {
  const Control control = begin(a.control, evidence);
  if (!control.armed) return;
  advance(evidence);
  const bool acts = lifetime_acts(a.lifetime, a.noise_key, control);
  constexpr FormatArguments format = plain_format(kPlain);
  constexpr bool kDivides = format.scale == ScaleRule::kQuotient, kHasMax = kPlain != Plain::kNf4;
  const TensorScale tensor = tensor_scale(format, kPlain == Plain::kNvfp4 ? a.tensor->amax : 0.0f);
  const float per_amax = 1.0f / 6.0f * tensor.inverse;
  __shared__ float2 scales[kPlain == Plain::kNvfp4 ? kScales : 1];
  __shared__ LevelTable levels;
  if constexpr (kPlain == Plain::kNvfp4) {
    if (threadIdx.x < kScales) {
      const float block = __uint_as_float((kFirstScale + threadIdx.x) << 20), multiply = tensor.inverse / block;
      scales[threadIdx.x] = make_float2(is_finite(multiply) ? multiply : 0.0f, block * tensor.scale);
    }
    __syncthreads();
  }
  if constexpr (kPlain == Plain::kNf4) {
    levels.fill(static_cast<int>(threadIdx.x));
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
    for (int offset = 1; offset < block_lanes(kPlain); offset *= 2)
      top = max(top, __shfl_xor_sync(kAllLanes, top, offset));
    if (!exists) continue;
    const float amax = Type::value(static_cast<uint16_t>(top));
    const Scale scale = kPlain == Plain::kNvfp4 ? nvfp4_block_scale(amax, per_amax, scales, tensor, a.normal_scales)
                                                : format_scale(format, amax, tensor, 0.0f, 0.0f);
    const bool ordinary = kDivides ? scale.divide > 0x1p-60f && scale.divide < 0x1p60f : scale.multiply > 0.0f;
    if (finite && ordinary) {
      ++ordinary_chunks;
      const float inverse = kDivides ? 1.0f / scale.divide : scale.multiply;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float x0 = Pair<Type>::low(x[k]), x1 = Pair<Type>::high(x[k]);
        const float v0 = kDivides ? quotient(x0, scale.divide, inverse) : x0 * inverse,
                    v1 = kDivides ? quotient(x1, scale.divide, inverse) : x1 * inverse;
        if constexpr (kPlain == Plain::kNf4) {  // a zero keeps its sign
          y[k] = Pair<Type>::round(x0 == 0.0f ? x0 : levels.nearest(v0) * scale.back,
                                   x1 == 0.0f ? x1 : levels.nearest(v1) * scale.back);
        } else {
          y[k] =
              Pair<Type>::round(round_element<kPlain>(v0, x0, scale.back), round_element<kPlain>(v1, x1, scale.back));
        }
        if constexpr (kLedger) {
          if constexpr (kHasMax) lane.saturated += (fabsf(v0) > format.grid.max) + (fabsf(v1) > format.grid.max);
          nonzero.add(differs<Type>(x[k], 0u));
          zeros.add(~differs<Type>(y[k], 0u));
        }
      }
      data[chunk] = make_uint4(y[0], y[1], y[2], y[3]);
    } else {
      uint32_t stored[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const SettledPair pair = settle_format<kPlain, Type>(x[k], scale);
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

inline bool same_arithmetic(const FormatArguments& f, const FormatArguments& g) {
  return f.faulty == Encoded::kNothing && f.element == g.element && f.scale == g.scale &&
         f.granularity == g.granularity && f.rounding == g.rounding && f.scale_up == g.scale_up &&
         f.second_level == g.second_level && f.four_over_six == g.four_over_six && f.hadamard == g.hadamard &&
         f.nan_spreads == g.nan_spreads && f.block == g.block &&
         (f.element != ElementRule::kMinifloat || f.grid == g.grid) &&
         (f.element != ElementRule::kLevels || f.levels == g.levels) &&
         (f.scale != ScaleRule::kPower || f.top_exponent == g.top_exponent) &&
         (f.scale != ScaleRule::kNarrow || (f.scale_grid == g.scale_grid && f.tensor_top == g.tensor_top)) &&
         (f.scale == ScaleRule::kPower || f.top == g.top);
}

// Which short form serves the call, if any.
inline Plain plain_of(const QuantizeArguments& q, const void* data) {
  const bool whole = q.extent.structure == Structure::kAll && q.rows > 0 && q.columns > 0 &&
                     q.columns % q.format.block == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int i = 0; whole && i < static_cast<int>(Plain::kNone); ++i) {
    if (same_arithmetic(q.format, plain_format(static_cast<Plain>(i)))) return static_cast<Plain>(i);
  }
  return Plain::kNone;
}

template <class Type>
void launch_block_format(Plain plain, const QuantizeArguments& q, const Traversal& traversal, void* data,
                         const Evidence& evidence, cudaStream_t stream) {
  const BlockFormatArguments a{q.rows * q.columns, q.control, q.lifetime,
                               q.noise_key,        q.tensor,  q.format.normal_scales};
  auto* chunks = static_cast<uint4*>(data);
#define FL_LAUNCH(which)                                                                \
  case Plain::which:                                                                    \
    launch("block_format",                                                              \
           evidence.ledger != nullptr ? block_format_kernel<Plain::which, Type, true>   \
                                      : block_format_kernel<Plain::which, Type, false>, \
           traversal, stream, a, traversal, chunks, evidence);                          \
    break
  switch (plain) {
    FL_LAUNCH(kMxfp4);
    FL_LAUNCH(kMxfp6E2m3);
    FL_LAUNCH(kMxfp6E3m2);
    FL_LAUNCH(kMxint8);
    FL_LAUNCH(kMxfp8E4m3);
    FL_LAUNCH(kMxfp8E5m2);
    FL_LAUNCH(kNvfp4);
    FL_LAUNCH(kFp8Block);
    FL_LAUNCH(kNf4);
    case Plain::kNone: FL_ASSERT(!"not a plain block format");
  }
#undef FL_LAUNCH
}

}  // namespace faultline::numeric::cuda
