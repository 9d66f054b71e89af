// x (M <= 8, K) times weight (N, K) transposed: bound by the weight's way through memory. For 16-bit types a block
// takes eight outputs and its warps share the inputs; each lane keeps six 16-byte loads in flight, asks for the next as
// soon as it has used one, and the tensor cores do the sums (Note [Fragments]), so that a row's result does not depend
// on how many rows there are. Blocks are small and many: the device's scheduler then evens out what a few large ones
// would leave to the slowest. A single row x waits in shared memory, out of the weights' way; to copy more rows takes
// longer than it saves. Other types and odd shapes: a warp an output, in plain fp32.
#include "model/cuda/mma.cuh"

namespace faultline::model::ops::cuda {
namespace {

constexpr int kWarps = 8, kAhead = 6, kOutputs = 8;
constexpr unsigned kPrefetching = 528;  // the first blocks, which may come early: Note [Overlap]
constexpr unsigned kPrefetched = 1024;  // bytes of a row
constexpr std::size_t kSharedLimit = 40 << 10;

// Slab j of the inputs is columns 32 j ... 32 j + 31; a warp takes two neighbours (128 bytes of a row), then the next
// two that are its own.
__device__ __forceinline__ int column_of(int warp, int i) { return ((i / 2 * kWarps + warp) * 2 + i % 2) * 32; }

__device__ __forceinline__ uint4 load_column(const void* from, bool inside) {
  return inside ? load_once(from) : uint4{};
}

template <class T, bool kShared>
__global__ void __launch_bounds__(32 * kWarps) tile_kernel(LinearArguments a) {
  extern __shared__ uint4 row[];
  __shared__ float parts[kWarps][kFewRows][kOutputs];
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kOutputs, output = min(first + g, a.outputs - 1);
  const T* weight = static_cast<const T*>(a.weight) + output * a.weight_stride + kOctet * c;
  if (warp == 0 && c == 0 && blockIdx.x < kPrefetching)
    prefetch(weight, min(static_cast<uint32_t>(a.inputs * sizeof(T)), kPrefetched));
  begin_kernel();
  const int columns = static_cast<int>(a.inputs) - kOctet * c;  // from this lane's first on
  uint4 w[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) w[i] = load_column(weight + column_of(warp, i), column_of(warp, i) < columns);
  const auto* x = reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + g * a.x_stride) + c;
  if constexpr (kShared) {
    for (int i = threadIdx.x; i < a.inputs / kOctet; i += 32 * kWarps) row[i] = static_cast<const uint4*>(a.x)[i];
    __syncthreads();
    x = row + c;
  }
  const bool has_row = g < a.rows;
  // The same number of turns for all warps, so that the compiler sees the products in uniform flow.
  const int turns = static_cast<int>((a.inputs + 64 * kWarps - 1) / (64 * kWarps)) * 2;
  float sums[4][2] = {};  // independent chains: a product takes some thirty cycles
  for (int at = 0; at < turns; at += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int column = column_of(warp, at + i), next = column_of(warp, at + i + kAhead);
      const uint4 v = has_row && column < columns ? x[column / kOctet] : uint4{};
      multiply_add<T>(sums[i % 2], v.x, v.y, w[i].x, w[i].y);
      multiply_add<T>(sums[2 + i % 2], v.z, v.w, w[i].z, w[i].w);
      w[i] = load_column(weight + next, next < columns);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) parts[warp][g][2 * c + i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
  __syncthreads();
  const int to = threadIdx.x / kOutputs, column = threadIdx.x % kOutputs;
  if (to >= a.rows || first + column >= a.outputs) return;
  float total = a.bias ? to_float(static_cast<const T*>(a.bias)[first + column]) : 0.0f;
#pragma unroll
  for (int part = 0; part < kWarps; ++part) total += parts[part][to][column];
  static_cast<T*>(a.out)[to * a.outputs + first + column] = from_float<T>(total);
}

template <class T>
void launch_tiles(const LinearArguments& a, void* stream) {
  const auto bytes = static_cast<std::size_t>(a.inputs) * sizeof(T);
  const unsigned blocks = blocks_of(a.outputs, kOutputs);
  if (a.rows == 1 && bytes <= kSharedLimit)
    return launch("few_rows_linear", tile_kernel<T, true>, blocks, 32 * kWarps, bytes, stream, a);
  launch("few_rows_linear", tile_kernel<T, false>, blocks, 32 * kWarps, 0, stream, a);
}

template <class T>
__global__ void __launch_bounds__(32 * kWarps) plain_kernel(LinearArguments a, bool aligned) {
  begin_kernel();
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (output >= a.outputs) return;
  const T* weight = static_cast<const T*>(a.weight) + output * a.weight_stride;
  float sum[kFewRows] = {};
  for (int64_t column = lane * kOctet; column < a.inputs; column += 32 * kOctet) {
    float w[kOctet], v[kOctet];
    load_octet(weight + column, a.inputs - column, aligned, w);
#pragma unroll
    for (int row = 0; row < kFewRows; ++row) {
      if (row >= a.rows) break;
      load_octet(static_cast<const T*>(a.x) + row * a.x_stride + column, a.inputs - column, aligned, v);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) sum[row] = fmaf(w[i], v[i], sum[row]);
    }
  }
  const float bias = a.bias ? to_float(static_cast<const T*>(a.bias)[output]) : 0.0f;
#pragma unroll
  for (int row = 0; row < kFewRows; ++row) {
    if (row >= a.rows) break;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum[row] += __shfl_xor_sync(0xFFFFFFFFu, sum[row], offset);
    if (lane == 0) static_cast<T*>(a.out)[row * a.outputs + output] = from_float<T>(sum[row] + bias);
  }
}

}  // namespace

void few_rows_linear(const LinearArguments& a, void* stream) {
  if (a.rows == 0 || a.outputs == 0) return;
  const bool aligned = a.inputs % kOctet == 0 && is_aligned(a.x, a.rows == 1 ? 0 : a.x_stride) &&
                       is_aligned(a.weight, a.outputs == 1 ? 0 : a.weight_stride);
  dispatch(a.element, [&](auto type) {
    using T = decltype(type);
    if constexpr (sizeof(T) == 2) {
      if (aligned) {
        launch_tiles<T>(a, stream);
        return;
      }
    }
    launch("few_rows_linear", plain_kernel<T>, blocks_of(a.outputs, kWarps), 32 * kWarps, 0, stream, a, aligned);
  });
}

}  // namespace faultline::model::ops::cuda
