// Copies of parameters that an operator reads in a parameter's stead: autocast casts each weight to its compute dtype,
// and models call .to() themselves. A copy made by aten::_to_copy inherits the identity of what it was made from, so
// that rules on weights find it and rules on inputs leave it alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace faultline::tap {

struct CastCopy {
  at::Tensor parameter;                 // the registered one
  int64_t from = 0;                     // where in the parameter's storage the copied part began
  int64_t offset = 0;                   // of the copy in its own storage
  std::vector<int64_t> sizes, strides;  // of the whole copy
};

void note_cast(const at::Tensor& from, const at::Tensor& copy);  // nothing where `from` is no parameter's
std::optional<CastCopy> cast_copy_of_storage(const at::Tensor& tensor);
void forget_casts();  // and autocast's own cache, whose copies nobody has seen being made

}  // namespace faultline::tap
