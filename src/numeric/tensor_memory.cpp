#include "numeric/tensor_memory.h"

#include <ATen/ATen.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "numeric/apply.h"

#ifdef FAULTLINE_WITH_CUDA
#include "numeric/cuda/kernels.h"
#endif

namespace faultline::numeric {
namespace {

#ifdef FAULTLINE_WITH_CUDA
at::Tensor allocated(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
  const c10::DeviceGuard guard(options.device());
  int64_t last = 0;  // the element furthest from the first
  for (std::size_t d = 0; d < sizes.size(); ++d) last += (std::max<int64_t>(sizes[d], 1) - 1) * strides[d];
  void* memory = cuda::allocate((last + 1) * static_cast<int64_t>(options.dtype().itemsize()));
  return at::from_blob(memory, sizes, strides, [](void* own) { cuda::release(own); }, options);
}
#endif

}  // namespace

at::Tensor lasting_like(const at::Tensor& x) {
#ifdef FAULTLINE_WITH_CUDA
  if (x.is_cuda()) return allocated(x.sizes(), x.strides(), x.options());
#endif
  return at::empty_strided(x.sizes(), x.strides(), x.options());
}

at::Tensor lasting_zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
#ifdef FAULTLINE_WITH_CUDA
  if (options.device().is_cuda()) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (std::size_t d = sizes.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * sizes[d];
    return allocated(sizes, strides, options).zero_();
  }
#endif
  return at::zeros(sizes, options);
}

namespace {

at::Tensor bit_weights(const at::Device& device) {  // 1, 2, 4, … 128
  const at::Tensor place = at::arange(8, at::TensorOptions().dtype(at::kByte).device(device));
  return at::bitwise_left_shift(at::ones_like(place), place);
}

at::Tensor unpack_bits(const at::Tensor& packed, c10::SymIntArrayRef sizes) {
  const at::Tensor weights = bit_weights(packed.device());
  const at::Tensor bits = packed.unsqueeze(1).bitwise_and(weights).ne(0).reshape({-1});
  return bits.narrow_symint(0, 0, c10::multiply_integers(sizes)).view_symint(sizes);
}

}  // namespace

at::Tensor pack_bits(const at::Tensor& mask) {
  const c10::SymInt padding = (8 - mask.sym_numel() % 8) % 8;
  const at::Tensor bits = at::constant_pad_nd_symint(mask.reshape({-1}).to(at::kByte), {0, padding}).view({-1, 8});
  const at::Tensor weights = bit_weights(mask.device());
  return (bits * weights).sum(1, false, at::kByte);
}

at::Tensor mask_gradient(const at::Tensor& gradient, const at::Tensor& packed) {
  return gradient.masked_fill(unpack_bits(packed, gradient.sym_sizes()), 0);
}

}  // namespace faultline::numeric
