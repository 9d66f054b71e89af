// From the storage type as a value to the type: dispatch(storage, [&](auto type) { using Type = decltype(type); ... }).
#pragma once

#include "model/cpu/kernels.h"
#include "model/cpu/vector.h"

namespace faultline::model::ops::cpu::FAULTLINE_ISA {

template <class Function>
FL_INLINE void dispatch(Storage storage, Function&& function) {
  switch (storage) {
    case Storage::kBFloat16: return function(BFloat16{});
    case Storage::kFloat16: return function(Float16{});
    default: return function(Float32{});
  }
}

// Row `row` of a matrix whose rows are `stride` elements apart.
template <class Type>
FL_INLINE const typename Type::Storage* row_of(const void* matrix, int64_t stride, int64_t row) {
  return static_cast<const typename Type::Storage*>(matrix) + row * stride;
}
template <class Type>
FL_INLINE typename Type::Storage* row_of(void* matrix, int64_t stride, int64_t row) {
  return static_cast<typename Type::Storage*>(matrix) + row * stride;
}

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA
