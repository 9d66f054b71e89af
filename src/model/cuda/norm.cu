// RMS norm, alone or after a residual addition, and its gradient. A row's squares are added in an order that depends on
// the width alone, so the fused and the separate form agree to the bit.
#include "model/cuda/element.cuh"

namespace faultline::model::ops::cuda {
namespace {

template <class T>
__global__ void norm_kernel(NormArguments a, bool aligned) {
  if (aligned && blockIdx.x == 0 && threadIdx.x + threadIdx.y == 0)
    prefetch(a.weight, static_cast<uint32_t>(a.width * sizeof(float)));
  begin_kernel();
  __shared__ float shared[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const T* x = static_cast<const T*>(a.x) + row / a.inner * a.outer_stride + row % a.inner * a.inner_stride;
  const T* residual = a.residual ? static_cast<const T*>(a.residual) + row * a.width : nullptr;
  T* sum = static_cast<T*>(a.sum) + row * a.width;
  float first[kOctet], weight[kOctet] = {}, squares = 0.0f;
  const int64_t begin = threadIdx.x * kOctet, step = blockDim.x * kOctet;
  if (begin < a.width) load_octet(a.weight + begin, a.width - begin, aligned, weight);  // not after the sum: it is slow
  for (int64_t column = begin; column < a.width; column += step) {
    float value[kOctet];
    load_octet(x + column, a.width - column, aligned, value);
    if (residual) {
      float other[kOctet];
      load_octet(residual + column, a.width - column, aligned, other);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) value[i] = to_float(from_float<T>(value[i] + other[i]));
      store_octet(sum + column, a.width - column, aligned, value);
    }
#pragma unroll
    for (int i = 0; i < kOctet; ++i) squares = fmaf(value[i], value[i], squares);
    if (column == begin) {
#pragma unroll
      for (int i = 0; i < kOctet; ++i) first[i] = value[i];
    }
  }
  const float inverse = 1.0f / sqrtf(row_sum(squares, shared) / static_cast<float>(a.width) + a.eps);
  for (int64_t column = begin; column < a.width; column += step) {
    if (column != begin) {
      load_octet(a.weight + column, a.width - column, aligned, weight);
      load_octet((residual ? sum : x) + column, a.width - column, aligned, first);
    }
#pragma unroll
    for (int i = 0; i < kOctet; ++i) first[i] = first[i] * inverse * weight[i];
    store_octet(static_cast<T*>(a.out) + row * a.width + column, a.width - column, aligned, first);
  }
}

// grad_x = r (g w) - x r^3 / width * sum(g w x), r = 1 / sqrt(mean(x^2) + eps)
template <class T>
__global__ void input_gradient(NormGradient a, bool aligned) {
  begin_kernel();
  __shared__ float shared[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const T* x = static_cast<const T*>(a.x) + row * a.width;
  const T* grad = static_cast<const T*>(a.grad) + row * a.width;
  const int64_t begin = threadIdx.x * kOctet, step = blockDim.x * kOctet;
  float squares = 0.0f, products = 0.0f, value[kOctet], g[kOctet], weight[kOctet];
  for (int64_t column = begin; column < a.width; column += step) {
    load_octet(x + column, a.width - column, aligned, value);
    load_octet(grad + column, a.width - column, aligned, g);
    load_octet(a.weight + column, a.width - column, aligned, weight);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      squares = fmaf(value[i], value[i], squares);
      products = fmaf(g[i] * weight[i], value[i], products);
    }
  }
  squares = row_sum(squares, shared);
  products = row_sum(products, shared);
  const float width = static_cast<float>(a.width), inverse = 1.0f / sqrtf(squares / width + a.eps);
  const float back = inverse * inverse * inverse * products / width;
  if (threadIdx.x == 0) a.inverse[row] = inverse;
  for (int64_t column = begin; column < a.width; column += step) {
    load_octet(x + column, a.width - column, aligned, value);
    load_octet(grad + column, a.width - column, aligned, g);
    load_octet(a.weight + column, a.width - column, aligned, weight);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) value[i] = inverse * g[i] * weight[i] - back * value[i];
    store_octet(static_cast<T*>(a.grad_x) + row * a.width + column, a.width - column, aligned, value);
  }
}

// grad_weight = sum over rows of g x r: a segment of the rows in a block, a row a warp at a time, then the segments in
// order.
constexpr int kSumWarps = 8, kSumColumns = 32 * kOctet;

template <class T>
__global__ void weight_gradient(NormGradient a, bool aligned) {
  begin_kernel();
  __shared__ float sums[kSumWarps][kOctet][32];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + threadIdx.x * kOctet;
  const int64_t per_segment = (a.rows + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * per_segment, end = min(a.rows, begin + per_segment);
  float sum[kOctet] = {};
  if (column < a.width) {
    for (int64_t row = begin + threadIdx.y; row < end; row += kSumWarps) {
      float value[kOctet], g[kOctet];
      load_octet(static_cast<const T*>(a.x) + row * a.width + column, a.width - column, aligned, value);
      load_octet(static_cast<const T*>(a.grad) + row * a.width + column, a.width - column, aligned, g);
      const float inverse = a.inverse[row];
#pragma unroll
      for (int i = 0; i < kOctet; ++i) sum[i] = fmaf(g[i] * inverse, value[i], sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sums[threadIdx.y][i][threadIdx.x] = sum[i];
  __syncthreads();
  const int own = threadIdx.y * 32 + threadIdx.x;  // a column a thread
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kSumColumns + own;
  if (at >= a.width) return;
  float total = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kSumWarps; ++warp) total += sums[warp][own % kOctet][own / kOctet];
  a.partial[blockIdx.y * a.width + at] = total;
}

__global__ void add_segments(const float* partial, float* totals, int64_t width) {
  begin_kernel();
  __shared__ float sums[kSumWarps][32];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0.0f;
  if (column < width) {
    for (int segment = static_cast<int>(threadIdx.y); segment < kNormSegments; segment += kSumWarps)
      sum += partial[segment * width + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  for (int warp = 1; warp < kSumWarps; ++warp) sum += sums[warp][threadIdx.x];
  totals[column] = sum;
}

}  // namespace

void rms_norm(const NormArguments& a, void* stream) {
  if (a.rows == 0 || a.width == 0) return;
  const bool aligned = is_aligned(a.x, a.outer_stride) && a.inner_stride % kOctet == 0 &&
                       is_aligned(a.residual, a.width) && is_aligned(a.weight) && is_aligned(a.sum) &&
                       is_aligned(a.out);
  const dim3 block = row_block(a.width);
  dispatch(a.element, [&](auto type) {
    launch("rms_norm", norm_kernel<decltype(type)>, blocks_of(a.rows, block.y), block, 0, stream, a, aligned);
  });
}

void rms_norm_backward(const NormGradient& a, void* stream) {
  if (a.width == 0) return;
  const bool aligned = is_aligned(a.grad, a.width) && is_aligned(a.x) && is_aligned(a.weight) && is_aligned(a.grad_x);
  const dim3 block = row_block(a.width);
  const dim3 warps(32, kSumWarps);
  dispatch(a.element, [&](auto type) {
    using T = decltype(type);
    if (a.rows > 0)
      launch("rms_norm_backward", input_gradient<T>, blocks_of(a.rows, block.y), block, 0, stream, a, aligned);
    launch("rms_norm_backward", weight_gradient<T>, dim3(blocks_of(a.width, kSumColumns), kNormSegments), warps, 0,
           stream, a, aligned);
  });
  launch("rms_norm_backward", add_segments, blocks_of(a.width, 32), warps, 0, stream, a.partial, a.grad_weight,
         a.width);
}

}  // namespace faultline::model::ops::cuda
