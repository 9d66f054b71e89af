// What backward keeps of a forward fault under `gradient: masked`: one bit an element, set where the fault forced a
// constant, so that no gradient passes there.
#pragma once

#include <ATen/core/Tensor.h>

namespace faultline {

at::Tensor pack_bits(const at::Tensor& mask);                                    // booleans -> bytes, eight a byte
at::Tensor mask_gradient(const at::Tensor& gradient, const at::Tensor& packed);  // zero where the bit is set

}  // namespace faultline
