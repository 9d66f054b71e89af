#include "numeric/lasting.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "numeric/apply.h"
#ifdef FAULTLINE_WITH_CUDA
#include "numeric/cuda/kernels.h"
#endif

namespace faultline {
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

}  // namespace faultline
