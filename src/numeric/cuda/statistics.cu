// Row, channel and tensor statistics on a GPU, in the order that statistics.h fixes: a warp a row, a thread a channel
// of a group of rows, a block a segment of the tensor.
#include "numeric/cuda/evidence.cuh"
#include "numeric/statistics.h"

namespace faultline::numeric::cuda {
namespace {

__device__ __forceinline__ double warp_add(double value) {
  for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) value += __shfl_down_sync(kAllLanes, value, offset);
  return value;
}

struct Sums {
  double count = 0, max = 0, sum_abs = 0, sum = 0, sum_squares = 0;

  __device__ __forceinline__ void add(float value) {
    const bool finite = is_finite(value);
    const double x = finite ? static_cast<double>(value) : 0.0, a = magnitude(x);
    count += finite ? 1.0 : 0.0;
    max = a > max ? a : max;
    sum_abs += a;
    sum += x;
    sum_squares = fused_multiply_add(x, x, sum_squares);
  }
};

// Eight lanes of a thread -> one.
__device__ __forceinline__ Sums fold(const Sums (&lane)[kChunk]) {
  Sums total;
  double value[kChunk];
#define FL_FOLD(member)                                       \
  for (int j = 0; j < kChunk; ++j) value[j] = lane[j].member; \
  total.member = add_chunk_lanes(value)
  FL_FOLD(count);
  FL_FOLD(sum_abs);
  FL_FOLD(sum);
  FL_FOLD(sum_squares);
#undef FL_FOLD
  for (int j = 0; j < kChunk; ++j) total.max = fmax(total.max, lane[j].max);
  return total;
}

__device__ __forceinline__ Sums warp_fold(Sums total) {
  total.count = warp_add(total.count);
  total.sum_abs = warp_add(total.sum_abs);
  total.sum = warp_add(total.sum);
  total.sum_squares = warp_add(total.sum_squares);
  for (int offset = kWarpLanes / 2; offset > 0; offset /= 2)
    total.max = fmax(total.max, __shfl_down_sync(kAllLanes, total.max, offset));
  return total;
}

__device__ __forceinline__ float value_of(Reference kind, const Sums& s) {
  return reference_value(kind, s.count, s.max, s.sum_abs, s.sum, s.sum_squares);
}

template <class Type>
__device__ __forceinline__ void add_chunk(const typename Type::Bits* data, int64_t first, int64_t end,
                                          Sums (&lane)[kChunk]) {
  const int count = static_cast<int>(min(end - first, static_cast<int64_t>(kChunk)));
  const auto values = load_chunk(data, first, count);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if (j < count) lane[j].add(Type::value(values.bits[j]));
  }
}

template <class Type>
__global__ void __launch_bounds__(kThreads)
    row_kernel(ReferenceArguments r, const typename Type::Bits* data, float* out) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarpLanes;
  if (row * r.columns >= r.elements) return;
  Sums lane[kChunk];
  for (int64_t column = (threadIdx.x % kWarpLanes) * kChunk; column < r.columns; column += kRowLanes) {
    add_chunk<Type>(data, row * r.columns + column, (row + 1) * r.columns, lane);
  }
  const Sums total = warp_fold(fold(lane));
  if (threadIdx.x % kWarpLanes == 0) out[row] = value_of(r.kind, total);
}

// The maximum alone needs no order and no fp64.
template <class Type>
__global__ void __launch_bounds__(kThreads)
    row_max_kernel(ReferenceArguments r, const typename Type::Bits* data, float* out) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarpLanes;
  if (row * r.columns >= r.elements) return;
  float max = 0;
  for (int64_t column = (threadIdx.x % kWarpLanes) * kChunk; column < r.columns; column += kRowLanes) {
    const auto values = load_chunk(data, row * r.columns + column,
                                   static_cast<int>(min(r.columns - column, static_cast<int64_t>(kChunk))));
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float x = Type::value(values.bits[j]);
      max = is_finite(x) ? fmaxf(max, magnitude(x)) : max;
    }
  }
  max = __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(max)));
  if (threadIdx.x % kWarpLanes == 0) out[row] = max;
}

template <class Type>
__global__ void __launch_bounds__(kThreads)
    column_group_kernel(ReferenceArguments r, const typename Type::Bits* data, double* groups) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, group = blockIdx.y;
  if (column >= r.columns) return;
  const int64_t rows = r.elements / r.columns, last = min((group + 1) * kRowGroup, rows);
  Sums sums;
  for (int64_t row = group * kRowGroup; row < last; ++row) sums.add(Type::value(data[row * r.columns + column]));
  double* out = groups + (group * r.columns + column) * kSumColumns;
  out[kSumCount] = sums.count, out[kSumMax] = sums.max, out[kSumAbs] = sums.sum_abs, out[kSum] = sums.sum,
  out[kSumSquares] = sums.sum_squares;
}

__global__ void __launch_bounds__(kThreads)
    column_finish_kernel(ReferenceArguments r, int64_t group_count, const double* groups, float* out) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= r.columns) return;
  Sums total;
  for (int64_t group = 0; group < group_count; ++group) {
    const double* part = groups + (group * r.columns + column) * kSumColumns;
    total.count += part[kSumCount];
    total.max = fmax(total.max, part[kSumMax]);
    total.sum_abs += part[kSumAbs];
    total.sum += part[kSum];
    total.sum_squares += part[kSumSquares];
  }
  out[column] = value_of(r.kind, total);
}

// 256 threads -> one, by the tree of ledger.h; the result is thread 0's.
__device__ __forceinline__ Sums block_fold(Sums total) {
  __shared__ SharedRoom<Sums, kThreads / kWarpLanes> warps;
  total = warp_fold(total);
  __syncthreads();
  if (threadIdx.x % kWarpLanes == 0) warps[threadIdx.x / kWarpLanes] = total;
  __syncthreads();
  total = {};
  for (int w = 0; w < kThreads / kWarpLanes; ++w) {
    total.count += warps[w].count;
    total.max = fmax(total.max, warps[w].max);
    total.sum_abs += warps[w].sum_abs;
    total.sum += warps[w].sum;
    total.sum_squares += warps[w].sum_squares;
  }
  return total;
}

template <class Type>
__global__ void __launch_bounds__(kThreads)
    tensor_kernel(ReferenceArguments r, Traversal traversal, const typename Type::Bits* data, double* segments,
                  float* out) {
  Sums lane[kChunk];
  for (int64_t tile = blockIdx.x; tile < traversal.tiles; tile += traversal.segments) {
    const int64_t first = (tile * kTileChunks + threadIdx.x) * kChunk;
    if (first < r.elements) add_chunk<Type>(data, first, r.elements, lane);
  }
  Sums total = block_fold(fold(lane));
  if (threadIdx.x == 0) {
    double* row = segments + blockIdx.x * kSumColumns;
    row[kSumCount] = total.count, row[kSumMax] = total.max, row[kSumAbs] = total.sum_abs, row[kSum] = total.sum,
    row[kSumSquares] = total.sum_squares;
  }
  if (!is_last_block(reinterpret_cast<uint32_t*>(segments + traversal.segments * kSumColumns))) return;
  __threadfence();
  total = {};
  for (int64_t segment = threadIdx.x; segment < traversal.segments; segment += kThreads) {
    const double* row = segments + segment * kSumColumns;
    total.count += __ldcg(row + kSumCount);
    total.max = fmax(total.max, __ldcg(row + kSumMax));
    total.sum_abs += __ldcg(row + kSumAbs);
    total.sum += __ldcg(row + kSum);
    total.sum_squares += __ldcg(row + kSumSquares);
  }
  total = block_fold(total);
  if (threadIdx.x == 0) *out = value_of(r.kind, total);
}

template <class Type>
void launch_reference(const ReferenceArguments& r, Axis axis, const void* data, double* scratch, float* out,
                      cudaStream_t stream) {
  const auto* values = static_cast<const typename Type::Bits*>(data);
  const int64_t rows = r.elements / r.columns;
  if (axis == Axis::kToken) {
    const unsigned blocks = static_cast<unsigned>((rows * kWarpLanes + kThreads - 1) / kThreads);
    if (r.kind == Reference::kMaxAbs) {
      row_max_kernel<Type><<<blocks, kThreads, 0, stream>>>(r, values, out);
    } else {
      row_kernel<Type><<<blocks, kThreads, 0, stream>>>(r, values, out);
    }
  } else if (axis == Axis::kChannel) {
    const unsigned across = static_cast<unsigned>((r.columns + kThreads - 1) / kThreads);
    const int64_t groups = (rows + kRowGroup - 1) / kRowGroup;
    FL_ASSERT(groups <= 65535);
    column_group_kernel<Type><<<dim3(across, static_cast<unsigned>(groups)), kThreads, 0, stream>>>(r, values, scratch);
    column_finish_kernel<<<across, kThreads, 0, stream>>>(r, groups, scratch, out);
  } else {
    const Traversal traversal = make_traversal((r.elements + kChunk - 1) / kChunk);
    tensor_kernel<Type>
        <<<static_cast<unsigned>(traversal.segments), kThreads, 0, stream>>>(r, traversal, values, scratch, out);
  }
  check_launch("reference");
}

}  // namespace

int64_t reference_scratch(const ReferenceArguments& r, Axis axis) {
  if (axis == Axis::kToken) return 1;
  if (axis == Axis::kTensor) return make_traversal((r.elements + kChunk - 1) / kChunk).segments * kSumColumns + 1;
  const int64_t rows = r.elements / r.columns;
  return (rows + kRowGroup - 1) / kRowGroup * r.columns * kSumColumns + 1;
}

void reference(const ReferenceArguments& r, Axis axis, const void* data, double* scratch, float* out, void* stream) {
  FL_ASSERT(r.dtype != Dtype::kFloat64);
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  if (r.dtype == Dtype::kFloat32) launch_reference<Float32>(r, axis, data, scratch, out, cuda_stream);
  if (r.dtype == Dtype::kBFloat16) launch_reference<BFloat16>(r, axis, data, scratch, out, cuda_stream);
  if (r.dtype == Dtype::kFloat16) launch_reference<Float16>(r, axis, data, scratch, out, cuda_stream);
}

}  // namespace faultline::numeric::cuda
