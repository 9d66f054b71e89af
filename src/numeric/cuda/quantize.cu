// Number formats on a GPU: one in-place pass. A block is 1 to 32 neighbouring threads of a warp, which agree on its
// largest magnitude by shuffles; formats scaled by row, tile or tensor read ranges that unit_ranges found before. A
// rotation (hadamard) is two neighbouring threads.
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

__device__ __forceinline__ void rotate(float (&x)[kChunk], bool back) {
  const bool second = threadIdx.x & 1;
  const int first = second ? kChunk : 0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) x[j] = back ? x[j] : rotation_sign(x[j], first + j);
  rotate_eight(x);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const float y = rotate_across(x[j], __shfl_xor_sync(kAllLanes, x[j], 1), second);
    x[j] = back ? rotation_sign(y, first + j) : is_finite(y) ? y : 0.0f;
  }
}

__device__ __forceinline__ float largest_of_four(const float* value) {
  return fmaxf(fmaxf(magnitude(value[0]), magnitude(value[1])), fmaxf(magnitude(value[2]), magnitude(value[3])));
}

// four_over_six: whether the other scale errs less over the block.
__device__ __forceinline__ bool errs_less(const FormatArguments& f, const Scale& four, const Scale& six,
                                          const float (&value)[kChunk]) {
  float of_four = squared_error(f, four, value), of_six = squared_error(f, six, value);
  for (int offset = 1; offset < f.block / kChunk; offset *= 2) {
    of_four += __shfl_xor_sync(kAllLanes, of_four, offset);
    of_six += __shfl_xor_sync(kAllLanes, of_six, offset);
  }
  return of_four < of_six;
}

// Where a chunk of the padded traversal lies.
struct Place {
  int64_t row, column;
  int count;  // elements that exist
};
__device__ __forceinline__ Place place_of(const QuantizeArguments& q, int64_t chunk) {
  const int64_t row = chunk / q.chunks_per_row, column = (chunk % q.chunks_per_row) * kChunk;
  const int64_t left = row < q.rows ? q.columns - column : 0;
  return {row, column, static_cast<int>(left <= 0 ? 0 : left < kChunk ? left : kChunk)};
}

template <ElementRule kElement, class Type>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const __grid_constant__ QuantizeArguments q, Traversal traversal, typename Type::Bits* data,
                    Evidence evidence) {
  using Bits = typename Type::Bits;
  const Control control = begin(q.control, evidence);
  if (!control.armed) return;
  advance(evidence);
  FormatArguments format = q.format;
  format.element = kElement;
  const uint64_t key = q.noise_key;
  const bool acts = lifetime_acts(q.lifetime, q.noise_key, control);
  const bool by_block = format.granularity == Granularity::kBlock;
  const TensorScale tensor = tensor_scale(format, format.second_level && q.tensor != nullptr ? q.tensor->amax : 0.0f);
  LaneEvidence lane;
  uint32_t struck = 0;
#pragma unroll 1
  for (int64_t tile = acts ? blockIdx.x : traversal.tiles; tile < traversal.tiles; tile += traversal.segments) {
    const int64_t chunk = tile * kTileChunks + threadIdx.x;
    const Place place = place_of(q, chunk);
    const int64_t first = place.row * q.columns + place.column;
    Chunk<Bits> values = load_chunk(data, place.count > 0 ? first : 0, place.count);
    float value[kChunk];
    UnitRange range;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float x = Type::value(values.bits[j]);
      value[j] = is_finite(x) ? x : 0.0f;
      range.nonfinite |= is_finite(x) ? 0u : 1u;
    }
    if (format.hadamard) rotate(value, false);
    const float low = largest_of_four(value), high = largest_of_four(value + 4);
    if (by_block) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) merge(range, value[j]);
      merge_across(range, format.block / kChunk);
    } else if (format.scale == ScaleRule::kNone) {
      range = {1.0f, 0.0f, 0.0f, 0u};
    } else if (place.count > 0) {
      range = q.ranges[unit_index(q, place.row, place.column)];
    }
    Scale scale = format_scale(format, range.amax, tensor, range.low, range.high);
    if (format.four_over_six) {
      const Scale four = format_scale(format, range.amax, tensor, range.low, range.high, true);
      if (errs_less(format, four, scale, value)) scale = four;
    }
    const Scale scales[2] = {local_scale(format, scale, fmaxf(low, high), low),
                             local_scale(format, scale, fmaxf(low, high), high)};
    Scale after = scale;
    if (format.faulty == Encoded::kScales && place.count > 0) {
      const auto number = static_cast<uint64_t>(scale_number(q, chunk, place.row, place.column));
      bool changed = false;
      after = struck_scale(format, scale, tensor, element_words(control, key, number, kScaleStream).word[0], changed);
      struck += changed && begins_unit(q, chunk, place.row, place.column) ? 1u : 0u;
    }
    const bool poisoned = format.nan_spreads && range.nonfinite;
    PhiloxWords words[2] = {}, strikes[2] = {};
    if (format.faulty == Encoded::kCodes) {
      strikes[0] = element_words(control, key, 2 * static_cast<uint64_t>(chunk), kCodeStream);
      strikes[1] = element_words(control, key, 2 * static_cast<uint64_t>(chunk) + 1, kCodeStream);
    }
    if (is_stochastic(format)) {
      words[0] = element_words(control, key, 2 * static_cast<uint64_t>(chunk), kRoundingStream);
      words[1] = element_words(control, key, 2 * static_cast<uint64_t>(chunk) + 1, kRoundingStream);
    }
    uint32_t saturated = 0, struck_codes = 0;  // a bit each
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const Scale& local = scales[j >> 2];
      const uint32_t word = words[j >> 2].word[j & 3];
      bool clipped = false, changed = false;
      if (format.faulty == Encoded::kNothing) {
        value[j] = quantize_value(format, local, value[j], word, clipped);
      } else {
        const float back = format.scale == ScaleRule::kHierarchy ? after.back * (local.back / scale.back) : after.back;
        value[j] = struck_quantize(format, local, back, value[j], word, strikes[j >> 2].word[j & 3], clipped, changed);
      }
      saturated |= clipped ? 1u << j : 0u;
      struck_codes |= changed ? 1u << j : 0u;
    }
    if (format.hadamard) rotate(value, true);
    const bool sampled = is_sampled(chunk);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (j >= place.count) break;
      const Bits before = values.bits[j];
      const float x = Type::value(before);
      const bool finite = is_finite(x);
      const float y = poisoned ? __uint_as_float(Float32::kNan) : finite ? value[j] : x;
      const bool selected = extent_selects(q.extent, q.mask_key, place.row, place.column + j);
      const bool same = y == x || !selected || (!finite && !poisoned);
      const Bits rounded = same ? before : Type::round(y);
      values.bits[j] = rounded;
      struck += selected && finite && (struck_codes >> j & 1u) != 0 ? 1u : 0u;
      if (evidence.ledger != nullptr)
        add_element(lane, j, x, Type::value(rounded), before != rounded, selected,
                    selected && finite && (saturated >> j & 1u) != 0, sampled, is_normal<Type>(x));
    }
    if (place.count > 0) store_chunk(data, first, place.count, values);
  }
  if (format.faulty != Encoded::kNothing && evidence.ledger != nullptr && acts) {
    struck = __reduce_add_sync(kAllLanes, struck);
    if (threadIdx.x % kWarpLanes == 0) add_word(evidence.ledger + kWordStruck, struck);
  }
  finish(lane, evidence, q.rows * q.columns, acts);
}

template <class Type>
void launch_quantize(const QuantizeArguments& q, const Traversal& traversal, void* data, const Evidence& evidence,
                     cudaStream_t stream) {
  auto* values = static_cast<typename Type::Bits*>(data);
  if constexpr (Type::kWidth == 16) {
    const Plain plain = plain_of(q, data);
    if (plain != Plain::kNone) return launch_block_format<Type>(plain, q, traversal, data, evidence, stream);
  }
#define FL_LAUNCH(rule)                                                                                              \
  case ElementRule::rule:                                                                                            \
    launch("quantize", quantize_kernel<ElementRule::rule, Type>, traversal, stream, q, traversal, values, evidence); \
    break
  switch (q.format.element) {
    FL_LAUNCH(kMinifloat);
    FL_LAUNCH(kInteger);
    FL_LAUNCH(kLevels);
    FL_LAUNCH(kTapered);
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

// A warp for each unit: rows of a row unit, strips of a tile. Narrow tiles are read several rows at a time.
template <class Type>
__global__ void __launch_bounds__(kThreads)
    unit_range_kernel(const __grid_constant__ QuantizeArguments q, const typename Type::Bits* data, int64_t unit_rows,
                      int64_t unit_columns, int64_t units_across, int64_t units, UnitRange* ranges, UnitRange* tensor) {
  const int64_t unit = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarpLanes;
  if (unit >= units) return;
  const int lane = threadIdx.x % kWarpLanes;
  const int wide = unit_columns < kWarpLanes ? static_cast<int>(unit_columns) : kWarpLanes, high = kWarpLanes / wide;
  const int64_t row = unit / units_across * unit_rows, column = unit % units_across * unit_columns;
  const int64_t last_row = min(row + unit_rows, q.rows), last_column = min(column + unit_columns, q.columns);
  UnitRange range;
  for (int64_t r = row + lane / wide; lane < wide * high && r < last_row; r += high) {
    for (int64_t c = column + lane % wide; c < last_column; c += wide)
      merge(range, Type::value(data[r * q.columns + c]));
  }
  merge_across(range, kWarpLanes);
  if (lane != 0) return;
  ranges[unit] = range;
  if (q.format.second_level) merge_global(tensor, range);
}

// Of rotated numbers: chunk by chunk as the pass that follows, joined by atomics.
template <class Type>
__global__ void __launch_bounds__(kThreads)
    rotated_range_kernel(const __grid_constant__ QuantizeArguments q, const typename Type::Bits* data, int64_t tiles,
                         UnitRange* units, UnitRange* tensor) {
  UnitRange whole;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Place place = place_of(q, tile * kTileChunks + threadIdx.x);
    const auto values = load_chunk(data, place.count > 0 ? place.row * q.columns + place.column : 0, place.count);
    float value[kChunk];
    UnitRange range;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float x = Type::value(values.bits[j]);
      value[j] = is_finite(x) ? x : 0.0f;
      range.nonfinite |= is_finite(x) ? 0u : 1u;
    }
    rotate(value, false);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) merge(range, value[j]);
    if (has_units(q.format) && place.count > 0) merge_global(units + unit_index(q, place.row, place.column), range);
    whole = {fmaxf(whole.amax, range.amax), fminf(whole.low, range.low), fmaxf(whole.high, range.high),
             whole.nonfinite | range.nonfinite};
  }
  merge_across(whole, kWarpLanes);
  if (threadIdx.x % kWarpLanes == 0 && q.format.second_level) merge_global(tensor, whole);
}

template <class Type>
void launch_ranges(const QuantizeArguments& q, const void* data, UnitRange* units, UnitRange* tensor,
                   cudaStream_t stream) {
  const auto* values = static_cast<const typename Type::Bits*>(data);
  const FormatArguments& f = q.format;
  const int64_t elements = q.rows * q.columns;
  const bool units_of_rows = has_units(f) && f.granularity != Granularity::kTensor;
  if (f.hadamard) {
    const int64_t tiles = (q.rows * q.chunks_per_row + kTileChunks - 1) / kTileChunks;
    const unsigned blocks = static_cast<unsigned>(tiles < kMaxSegments ? tiles : kMaxSegments);
    rotated_range_kernel<Type><<<blocks, kThreads, 0, stream>>>(q, values, tiles, units, tensor);
  } else if (units_of_rows) {
    const bool tiled = f.granularity == Granularity::kTile;
    const int64_t unit_rows = tiled ? f.tile_rows : 1, unit_columns = tiled ? f.block : q.columns;
    const int64_t across = tiled ? tiles_across(q) : 1, count = tiled ? across * tiles_down(q) : q.rows;
    const unsigned blocks = static_cast<unsigned>((count * kWarpLanes + kThreads - 1) / kThreads);
    unit_range_kernel<Type>
        <<<blocks, kThreads, 0, stream>>>(q, values, unit_rows, unit_columns, across, count, units, tensor);
  } else {
    const int64_t wanted = (elements + kTile - 1) / kTile;
    const unsigned blocks = static_cast<unsigned>(wanted < kMaxSegments ? wanted : kMaxSegments);
    const bool amax_only = !has_units(f);  // a tensor's scale takes its largest magnitude alone
    if constexpr (Type::kWidth == 16) {
      if (amax_only && elements % kChunk == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0) {
        tensor_amax_kernel<Type>
            <<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data), elements / kChunk, tensor);
        return check_launch("tensor_amax");
      }
    }
    tensor_range_kernel<Type><<<blocks, kThreads, 0, stream>>>(values, elements, amax_only ? tensor : units);
    if (has_units(f) && f.second_level)  // of one unit, the tensor: the same again
      tensor_range_kernel<Type><<<blocks, kThreads, 0, stream>>>(values, elements, tensor);
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

void unit_ranges(const QuantizeArguments& q, const void* data, UnitRange* units, UnitRange* tensor, void* stream) {
  FL_ASSERT(q.dtype != Dtype::kFloat64);
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  if (q.dtype == Dtype::kFloat32) launch_ranges<Float32>(q, data, units, tensor, cuda_stream);
  if (q.dtype == Dtype::kBFloat16) launch_ranges<BFloat16>(q, data, units, tensor, cuda_stream);
  if (q.dtype == Dtype::kFloat16) launch_ranges<Float16>(q, data, units, tensor, cuda_stream);
}

}  // namespace faultline::numeric::cuda
