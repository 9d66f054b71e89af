// What the CUDA operators ask of their tensors, as sentences: operator, argument, what was wanted, what came.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "model/cuda/kernels.h"

namespace faultline::model::ops {

inline std::string text_of(const at::Tensor& x) {
  return fmt::format("{} {} on {}", c10::toString(x.scalar_type()), c10::str(x.sizes()), x.device().str());
}

inline void require(bool holds, const char* op, const char* name, const char* wanted, const at::Tensor& got) {
  if (!holds) throw UsageError(fmt::format("faultline::{}: {} must be {}; got {}", op, name, wanted, text_of(got)));
}

inline cuda::Element element_of(const char* op, const char* name, const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat: return cuda::Element::kFloat32;
    case at::kBFloat16: return cuda::Element::kBFloat16;
    case at::kHalf: return cuda::Element::kFloat16;
    default:
      throw UsageError(fmt::format("faultline::{}: {} must be fp32, bf16 or fp16; got {}", op, name, text_of(x)));
  }
}

inline void require_beside(const char* op, const char* name, const at::Tensor& tensor, const at::Tensor& x) {
  if (tensor.device() != x.device()) require(false, op, name, ("on " + x.device().str()).c_str(), tensor);
}

// One entry a row, contiguous, on x's device.
inline void require_vector(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType type,
                           int64_t size, const at::Tensor& x) {
  require_beside(op, name, tensor, x);
  if (tensor.scalar_type() != type || tensor.dim() != 1 || tensor.size(0) != size || !tensor.is_contiguous())
    require(false, op, name, fmt::format("contiguous {} ({})", c10::toString(type), size).c_str(), tensor);
}

inline void require_like(const char* op, const char* name, const at::Tensor& tensor, const at::Tensor& x) {
  require_beside(op, name, tensor, x);
  require(tensor.scalar_type() == x.scalar_type() && tensor.sizes() == x.sizes(), op, name, "of x's type and shape",
          tensor);
}

inline bool has_dense_rows(const at::Tensor& x) { return x.size(-1) == 1 || x.stride(-1) == 1; }

// Rows at one distance: (N, columns) with dense rows as it is, anything else as a contiguous copy.
inline at::Tensor as_rows(const at::Tensor& x) {
  if (x.dim() == 2 && has_dense_rows(x)) return x;
  const at::Tensor dense = x.contiguous();
  return dense.reshape({x.size(-1) == 0 ? 0 : x.numel() / x.size(-1), x.size(-1)});
}

inline int64_t row_stride(const at::Tensor& rows) { return rows.size(0) <= 1 ? rows.size(1) : rows.stride(0); }

}  // namespace faultline::model::ops
