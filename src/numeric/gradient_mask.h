// What backward keeps of a forward fault under `gradient: masked`: one bit an element, set where the fault forced a
// constant, so that no gradient passes there.
#pragma once

#include <ATen/core/Tensor.h>

namespace faultline {

at::Tensor pack_bits(const at::Tensor& mask);  // booleans -> bytes, eight a byte
at::Tensor unpack_bits(const at::Tensor& packed, c10::SymIntArrayRef sizes);

}  // namespace faultline
