// SwiGLU and its gradient: eight outputs a thread.
#include "model/cuda/element.cuh"

namespace faultline::model::ops::cuda {
namespace {

constexpr int kThreads = 128;

struct Place {
  int64_t row, column;
  bool inside;
};

__device__ __forceinline__ Place place_of(int64_t rows, int64_t width) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                octets = (width + kOctet - 1) / kOctet;
  return {unit / octets, unit % octets * kOctet, unit < rows * octets};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* gate_up, int64_t stride, T* out, int64_t rows, int64_t width, bool aligned) {
  begin_kernel();
  const auto [row, column, inside] = place_of(rows, width);
  if (!inside) return;
  float gate[kOctet], up[kOctet];
  const T* from = gate_up + row * stride + column;
  load_octet(from, width - column, aligned, gate);
  load_octet(from + width, width - column, aligned, up);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
  store_octet(out + row * width + column, width - column, aligned, gate);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* grad, const T* gate_up, int64_t stride, T* grad_gate_up, int64_t rows, int64_t width,
                    bool aligned) {
  begin_kernel();
  const auto [row, column, inside] = place_of(rows, width);
  if (!inside) return;
  float gate[kOctet], up[kOctet], g[kOctet];
  const T* from = gate_up + row * stride + column;
  load_octet(from, width - column, aligned, gate);
  load_octet(from + width, width - column, aligned, up);
  load_octet(grad + row * width + column, width - column, aligned, g);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const float sigmoid = 1.0f / (1.0f + expf(-gate[i])), silu = gate[i] * sigmoid;
    const float slope = sigmoid * (1.0f + gate[i] * (1.0f - sigmoid));
    gate[i] = g[i] * up[i] * slope;
    up[i] = g[i] * silu;
  }
  T* to = grad_gate_up + row * 2 * width + column;
  store_octet(to, width - column, aligned, gate);
  store_octet(to + width, width - column, aligned, up);
}

unsigned blocks(int64_t rows, int64_t width) { return blocks_of(rows * ((width + kOctet - 1) / kOctet), kThreads); }

}  // namespace

void swiglu(Element element, const void* gate_up, int64_t stride, void* out, int64_t rows, int64_t width,
            void* stream) {
  if (rows == 0 || width == 0) return;
  const bool aligned = is_aligned(gate_up, stride) && is_aligned(out, width);
  dispatch(element, [&](auto type) {
    using T = decltype(type);
    launch("swiglu", forward_kernel<T>, blocks(rows, width), kThreads, 0, stream, static_cast<const T*>(gate_up),
           stride, static_cast<T*>(out), rows, width, aligned);
  });
}

void swiglu_backward(Element element, const void* grad, const void* gate_up, int64_t stride, void* grad_gate_up,
                     int64_t rows, int64_t width, void* stream) {
  if (rows == 0 || width == 0) return;
  const bool aligned = is_aligned(gate_up, stride) && is_aligned(grad, width) && is_aligned(grad_gate_up);
  dispatch(element, [&](auto type) {
    using T = decltype(type);
    launch("swiglu_backward", backward_kernel<T>, blocks(rows, width), kThreads, 0, stream, static_cast<const T*>(grad),
           static_cast<const T*>(gate_up), stride, static_cast<T*>(grad_gate_up), rows, width, aligned);
  });
}

}  // namespace faultline::model::ops::cuda
