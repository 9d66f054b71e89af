#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <torch/library.h>

#include <algorithm>

#include "base/machine.h"
#include "model/product.h"
#include "site/torch_support.h"

namespace faultline::model {
namespace {

constexpr int64_t kBlock = 1 << 22;  // elements of the result that exist in fp32 at a time
constexpr int64_t kTask = 1 << 15;   // fewer are not worth waking a thread

// Nothing here calls an operator by its name: a census or a tap would take it for one of the model's.

bool is_bf16_matrix(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.dim() == 2 && x.is_non_overlapping_and_dense();
}

at::Tensor widened(const at::Tensor& x) {
  at::Tensor wide = at::detail::empty_strided_cpu(x.sizes(), x.strides(), at::kFloat);
  const at::BFloat16* from = x.const_data_ptr<at::BFloat16>();
  float* to = wide.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), kTask, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) to[i] = static_cast<float>(from[i]);
  });
  return wide;
}

// a b in fp32, rounded once; `multiply` gets some rows of a, and b.
template <class Multiply>
at::Tensor multiply_in_blocks(const at::Tensor& a, const at::Tensor& b, const Multiply& multiply) {
  const int64_t rows = a.size(0), columns = b.size(1);
  const at::Tensor left = widened(a), right = widened(b);
  at::Tensor y = at::detail::empty_cpu({rows, columns}, at::kBFloat16);
  const int64_t at_once = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, columns));
  for (int64_t row = 0; row < rows; row += at_once) {
    const int64_t count = std::min(at_once, rows - row);
    const at::Tensor block = at::from_blob(left.mutable_data_ptr<float>() + row * left.stride(0), {count, left.size(1)},
                                           left.strides(), at::TensorOptions(at::kFloat));
    const at::Tensor wide = multiply(block, right);
    const float* from = wide.const_data_ptr<float>();
    at::BFloat16* to = y.mutable_data_ptr<at::BFloat16>() + row * columns;
    at::parallel_for(0, count * columns, kTask, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) to[i] = from[i];
    });
  }
  return y;
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  if (!is_bf16_matrix(a) || !is_bf16_matrix(b) || a.size(1) != b.size(0)) return at::cpu::mm(a, b);
  return multiply_in_blocks(a, b,
                            [](const at::Tensor& rows, const at::Tensor& right) { return at::cpu::mm(rows, right); });
}

at::Tensor addmm(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  if (!is_bf16_matrix(a) || !is_bf16_matrix(b) || a.size(1) != b.size(0) || bias.scalar_type() != at::kBFloat16 ||
      bias.dim() != 1 || !bias.is_contiguous())
    return at::cpu::addmm(bias, a, b, beta, alpha);
  return multiply_in_blocks(a, b, [&, wide_bias = widened(bias)](const at::Tensor& rows, const at::Tensor& right) {
    return at::cpu::addmm(wide_bias, rows, right, beta, alpha);
  });
}

}  // namespace

bool multiplies_bf16_slowly() {
  switch (instruction_set()) {
    case InstructionSet::kAvx512Bf16:
    case InstructionSet::kAmx:
    case InstructionSet::kArmBf16: return false;
    default: return true;
  }
}

void multiply_bf16_in_fp32() {
  static const torch::Library* const library = [] {
    const site::SilentWarnings silent;  // the kernels are replaced on purpose
    auto* made = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    made->impl("mm", mm);
    made->impl("addmm", addmm);
    return made;  // never taken back: others may have wrapped these kernels
  }();
  (void)library;
}

}  // namespace faultline::model
