// x (M <= 8, K) times weight (N, K) transposed: bound by the weight's way through memory. For 16-bit types a block
// takes eight outputs, its warps the slabs of 32 inputs in turn; each lane keeps eight 16-byte loads in flight and the
// tensor cores do the sums (Note [Fragments]), so that a row's result does not depend on how many rows there are. Other
// types and odd shapes: a warp an output, in plain fp32.
#include "model/cuda/mma.cuh"

namespace faultline::ops::cuda {
namespace {

constexpr int kWarps = 8, kAhead = 8, kOutputs = 8;

template <class T>
__global__ void __launch_bounds__(32 * kWarps) tile_kernel(LinearArguments a) {
  __shared__ float shared[kWarps][kFewRows][kOutputs];
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kOutputs;
  if (threadIdx.x < kOutputs && first + threadIdx.x < a.outputs)
    prefetch(static_cast<const T*>(a.weight) + (first + threadIdx.x) * a.weight_stride,
             static_cast<uint32_t>(a.inputs * sizeof(T)));
  begin_kernel();
  const int64_t slabs = (a.inputs + 31) / 32;
  const T* weight = static_cast<const T*>(a.weight) + min(first + g, a.outputs - 1) * a.weight_stride + 8 * c;
  const T* x = static_cast<const T*>(a.x) + g * a.x_stride + 8 * c;
  const bool has_row = g < a.rows;
  float sums[4][2] = {};  // independent chains: a product takes some thirty cycles
  for (int64_t slab = warp; slab < slabs; slab += kWarps * kAhead) {
    uint4 w[kAhead], v[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t column = (slab + i * kWarps) * 32;
      w[i] = column + 8 * c < a.inputs ? load_once(weight + column) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t column = (slab + i * kWarps) * 32;
      v[i] = has_row && column + 8 * c < a.inputs ? *reinterpret_cast<const uint4*>(x + column) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      multiply_add<T>(sums[i % 2], v[i].x, v[i].y, w[i].x, w[i].y);
      multiply_add<T>(sums[2 + i % 2], v[i].z, v[i].w, w[i].z, w[i].w);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) shared[warp][g][2 * c + i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
  __syncthreads();
  const int64_t row = threadIdx.x / kOutputs, output = first + threadIdx.x % kOutputs;
  if (row >= a.rows || output >= a.outputs) return;
  float total = a.bias ? to_float(static_cast<const T*>(a.bias)[output]) : 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += shared[w][row][threadIdx.x % kOutputs];
  static_cast<T*>(a.out)[row * a.outputs + output] = from_float<T>(total);
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
        launch("few_rows_linear", tile_kernel<T>, blocks_of(a.outputs, kOutputs), 32 * kWarps, 0, stream, a);
        return;
      }
    }
    launch("few_rows_linear", plain_kernel<T>, blocks_of(a.outputs, kWarps), 32 * kWarps, 0, stream, a, aligned);
  });
}

}  // namespace faultline::ops::cuda
