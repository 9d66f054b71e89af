#include "numeric/gradient_mask.h"

#include <ATen/ATen.h>

namespace faultline {
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

}  // namespace faultline
