// Memory that outlasts the pool of the moment. torch.compile's CUDA graphs (mode reduce-overhead) run a step inside a
// memory pool of their own and refuse tensors that stay alive in it; what a plan keeps — its tables, its copies of
// weights — is therefore allocated beside torch's allocator on a GPU. Not while a graph is being captured.
#pragma once

#include <ATen/core/Tensor.h>

namespace faultline::numeric {

at::Tensor lasting_zeros(at::IntArrayRef sizes, const at::TensorOptions& options);
at::Tensor lasting_like(const at::Tensor& x);  // same sizes, strides and dtype; not initialised

// What backward keeps of a forward fault under `gradient: masked`: one bit an element, set where the fault forced a
// constant, so that no gradient passes there.

at::Tensor pack_bits(const at::Tensor& mask);                                    // booleans -> bytes, eight a byte
at::Tensor mask_gradient(const at::Tensor& gradient, const at::Tensor& packed);  // zero where the bit is set

}  // namespace faultline::numeric
