// Number formats on a GPU: one in-place pass. A block is 1 to 32 neighbouring threads of a warp, which agree on its
// largest magnitude by shuffles; formats scaled by row, tile or tensor read ranges that unit_ranges found before.
#include "numeric/arithmetic.h"
#include "numeric/cuda/block_format.cuh"
#include "numeric/cuda/evidence.cuh"
#include "numeric/formats.h"

namespace faultline::numeric::cuda {
namespace {

__device__ __forceinline__ void merge(UnitRange& range, float x) {
  const bool finite = is_finite(x);
  range.nonfinite |= finite ? 0u : 1u;
  const float clean = finite ? x : 0.0f;
  range.amax = fmaxf(range.amax, magnitude(clean));
  range.low = fminf(range.low, clean);
  range.high = fmaxf(range.high, clean);
}

__device__ __forceinline__ void merge_across(UnitRange& range, int lanes) {
  for (int offset = 1; offset < lanes; offset *= 2) {
    range.amax = fmaxf(range.amax, __shfl_xor_sync(kAllLanes, range.amax, offset));
    range.low = fminf(range.low, __shfl_xor_sync(kAllLanes, range.low, offset));
    range.high = fmaxf(range.high, __shfl_xor_sync(kAllLanes, range.high, offset));
    range.nonfinite |= __shfl_xor_sync(kAllLanes, range.nonfinite, offset);
  }
}

template <FormatKind kKind, class Type>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const __grid_constant__ QuantizeArguments q, Traversal traversal, typename Type::Bits* data,
                    Evidence evidence) {
  using Bits = typename Type::Bits;
  const Control control = begin(q.control, evidence);
  if (!control.armed) return;
  advance(evidence);
  FormatArguments format = q.format;
  format.kind = kKind;
  const uint64_t key = q.noise_key;
  const bool acts = lifetime_acts(q.lifetime, q.noise_key, control);
  const bool by_block = format.granularity == Granularity::kBlock;
  const float tensor_amax = kKind == FormatKind::kNvfp4 ? q.ranges[0].amax : 0.0f;
  LaneEvidence lane;
#pragma unroll 1
  for (int64_t tile = acts ? blockIdx.x : traversal.tiles; tile < traversal.tiles; tile += traversal.segments) {
    const int64_t chunk = tile * kTileChunks + threadIdx.x;
    const int64_t row = chunk / q.chunks_per_row, column = (chunk % q.chunks_per_row) * kChunk;
    const int64_t left = row < q.rows ? q.columns - column : 0;
    const int count = static_cast<int>(left <= 0 ? 0 : left < kChunk ? left : kChunk);
    const int64_t first = row * q.columns + column;
    Chunk<Bits> values = load_chunk(data, count > 0 ? first : 0, count);
    UnitRange range;
    if (by_block) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) merge(range, Type::value(values.bits[j]));
      merge_across(range, format.block / kChunk);
    } else if (kKind == FormatKind::kCast) {
      range.amax = 1.0f;
    } else if (count > 0) {
      range = q.ranges[unit_index(q, row, column)];
    }
    const Scale scale = format_scale(format, range.amax, tensor_amax, range.low, range.high);
    const bool poisoned = format.nan_spreads && range.nonfinite;
    PhiloxWords words[2] = {};
    if (format.stochastic) {
      words[0] = element_words(control, key, 2 * static_cast<uint64_t>(chunk), kRoundingStream);
      words[1] = element_words(control, key, 2 * static_cast<uint64_t>(chunk) + 1, kRoundingStream);
    }
    const bool sampled = is_sampled(chunk);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (j >= count) break;
      const Bits before = values.bits[j];
      const float x = Type::value(before);
      bool saturated = false;
      float y = is_finite(x) ? quantize_value(format, scale, x, words[j >> 2].word[j & 3], saturated) : x;
      if (poisoned) y = __uint_as_float(Float32::kNan);
      const bool selected = extent_selects(q.extent, q.mask_key, row, column + j);
      const bool same = y == x || !selected || (!is_finite(x) && !poisoned);
      const Bits after = same ? before : Type::round(y);
      values.bits[j] = after;
      if (evidence.ledger != nullptr)
        add_element(lane, j, x, Type::value(after), before != after, selected, selected && saturated, sampled,
                    is_normal<Type>(x));
    }
    if (count > 0) store_chunk(data, first, count, values);
  }
  finish(lane, evidence, q.rows * q.columns, acts);
}

template <class Type>
void launch_quantize(const QuantizeArguments& q, const Traversal& traversal, void* data, const Evidence& evidence,
                     cudaStream_t stream) {
  auto* values = static_cast<typename Type::Bits*>(data);
  if constexpr (Type::kWidth == 16) {
    if (is_plain_block_format(q, data)) return launch_block_format<Type>(q, traversal, data, evidence, stream);
  }
#define FL_LAUNCH(kind)                                                                                             \
  case FormatKind::kind:                                                                                            \
    launch("quantize", quantize_kernel<FormatKind::kind, Type>, traversal, stream, q, traversal, values, evidence); \
    break
  switch (q.format.kind) {
    FL_LAUNCH(kMxfp4);
    FL_LAUNCH(kMxfp4Ceil);
    FL_LAUNCH(kMxfp8E4m3);
    FL_LAUNCH(kMxfp8E5m2);
    FL_LAUNCH(kNvfp4);
    FL_LAUNCH(kNvfp4Single);
    FL_LAUNCH(kFp8E4m3);
    FL_LAUNCH(kFp8E5m2);
    FL_LAUNCH(kInt);
    FL_LAUNCH(kBfp);
    FL_LAUNCH(kCast);
  }
#undef FL_LAUNCH
}

// Ranges are combined across blocks by atomics on the bits: magnitudes and, for one sign, order like unsigned integers.
__device__ __forceinline__ void merge_global(UnitRange* unit, const UnitRange& range) {
  if (range.amax > 0.0f) atomicMax(reinterpret_cast<unsigned*>(&unit->amax), __float_as_uint(range.amax));
  if (range.high > 0.0f) atomicMax(reinterpret_cast<unsigned*>(&unit->high), __float_as_uint(range.high));
  if (range.low < 0.0f) atomicMax(reinterpret_cast<unsigned*>(&unit->low), __float_as_uint(range.low));
  if (range.nonfinite) atomicOr(&unit->nonfinite, 1u);
}

// The largest magnitude alone, for nvfp4: on packed integers. Non-finite numbers are left out, chunk by chunk. Goes
// from the end to the start, so that the pass that follows finds what it reads first in the cache.
template <class Type>
__global__ void __launch_bounds__(kThreads) tensor_amax_kernel(const uint4* data, int64_t chunks, UnitRange* unit) {
  uint32_t top = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
#pragma unroll 4
  for (int64_t chunk = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; chunk < chunks; chunk += stride) {
    const uint4 loaded = data[chunks - 1 - chunk];
    const uint32_t x[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    bool finite = true;
    top = max(top, chunk_amax<Type>(x, finite));
  }
  top = __reduce_max_sync(kAllLanes, top);
  if (threadIdx.x % kWarpLanes == 0 && top > 0)
    atomicMax(reinterpret_cast<unsigned*>(&unit->amax), __float_as_uint(Type::value(static_cast<uint16_t>(top))));
}

template <class Type>
__global__ void __launch_bounds__(kThreads)
    tensor_range_kernel(const typename Type::Bits* data, int64_t elements, UnitRange* unit) {
  UnitRange range;
  const int64_t chunks = (elements + kChunk - 1) / kChunk, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t chunk = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; chunk < chunks; chunk += stride) {
    const int64_t left = elements - chunk * kChunk;
    const auto values = load_chunk(data, chunk * kChunk, static_cast<int>(left < kChunk ? left : kChunk));
#pragma unroll
    for (int j = 0; j < kChunk; ++j) merge(range, Type::value(values.bits[j]));
  }
  merge_across(range, kWarpLanes);
  __shared__ SharedRoom<UnitRange, kThreads / kWarpLanes> shared;
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = range;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / kWarpLanes; ++w) {
    range.amax = fmaxf(range.amax, shared[w].amax);
    range.low = fminf(range.low, shared[w].low);
    range.high = fmaxf(range.high, shared[w].high);
    range.nonfinite |= shared[w].nonfinite;
  }
  merge_global(unit, range);
}

// A warp for each (unit row range, unit): rows of a row unit, 128-row strips of a tile.
template <class Type>
__global__ void __launch_bounds__(kThreads)
    unit_range_kernel(const typename Type::Bits* data, int64_t rows, int64_t columns, int64_t unit_rows,
                      int64_t unit_columns, int64_t units_across, int64_t units, UnitRange* ranges) {
  const int64_t unit = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarpLanes;
  if (unit >= units) return;
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t row = unit / units_across * unit_rows, column = unit % units_across * unit_columns;
  const int64_t last_row = min(row + unit_rows, rows), last_column = min(column + unit_columns, columns);
  UnitRange range;
  for (int64_t r = row; r < last_row; ++r) {
    for (int64_t c = column + lane; c < last_column; c += kWarpLanes) merge(range, Type::value(data[r * columns + c]));
  }
  merge_across(range, kWarpLanes);
  if (lane == 0) ranges[unit] = range;
}

template <class Type>
void launch_ranges(Granularity granularity, bool amax_only, const void* data, int64_t rows, int64_t columns,
                   UnitRange* ranges, cudaStream_t stream) {
  const auto* values = static_cast<const typename Type::Bits*>(data);
  if (granularity == Granularity::kTensor) {
    const int64_t wanted = (rows * columns + kTile - 1) / kTile;
    const unsigned blocks = static_cast<unsigned>(wanted < kMaxSegments ? wanted : kMaxSegments);
    if constexpr (Type::kWidth == 16) {
      if (amax_only && rows * columns % kChunk == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0) {
        tensor_amax_kernel<Type>
            <<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data), rows * columns / kChunk, ranges);
        return check_launch("tensor_amax");
      }
    }
    tensor_range_kernel<Type><<<blocks, kThreads, 0, stream>>>(values, rows * columns, ranges);
  } else {
    const bool tiled = granularity == Granularity::kTile;
    const int64_t unit_rows = tiled ? kFormatTile : 1, unit_columns = tiled ? kFormatTile : columns;
    const int64_t across = (columns + unit_columns - 1) / unit_columns,
                  units = across * ((rows + unit_rows - 1) / unit_rows);
    const unsigned blocks = static_cast<unsigned>((units * kWarpLanes + kThreads - 1) / kThreads);
    unit_range_kernel<Type>
        <<<blocks, kThreads, 0, stream>>>(values, rows, columns, unit_rows, unit_columns, across, units, ranges);
  }
  check_launch("unit_ranges");
}

}  // namespace

void quantize(const QuantizeArguments& q, const Traversal& traversal, void* data, const Evidence& evidence,
              void* stream) {
  FL_ASSERT(q.dtype != Dtype::kFloat64);
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  if (q.dtype == Dtype::kFloat32) launch_quantize<Float32>(q, traversal, data, evidence, cuda_stream);
  if (q.dtype == Dtype::kBFloat16) launch_quantize<BFloat16>(q, traversal, data, evidence, cuda_stream);
  if (q.dtype == Dtype::kFloat16) launch_quantize<Float16>(q, traversal, data, evidence, cuda_stream);
}

void unit_ranges(Dtype dtype, Granularity granularity, bool amax_only, const void* data, int64_t rows, int64_t columns,
                 UnitRange* ranges, void* stream) {
  FL_ASSERT(dtype != Dtype::kFloat64);
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  if (dtype == Dtype::kFloat32)
    launch_ranges<Float32>(granularity, amax_only, data, rows, columns, ranges, cuda_stream);
  if (dtype == Dtype::kBFloat16)
    launch_ranges<BFloat16>(granularity, amax_only, data, rows, columns, ranges, cuda_stream);
  if (dtype == Dtype::kFloat16)
    launch_ranges<Float16>(granularity, amax_only, data, rows, columns, ranges, cuda_stream);
}

}  // namespace faultline::numeric::cuda
