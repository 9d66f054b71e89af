#include "numeric/portable/values.h"

#include <ATen/ATen.h>

namespace faultline::numeric::portable {
namespace {

constexpr int32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

// (bound - |bits|) >> 31: all ones where the magnitude is above the bound.
at::Tensor above(const at::Tensor& values, int32_t bound, Pool& pool) {
  at::Tensor mask = pool.take(at::kInt, values.numel()).view(values.sizes());
  at::bitwise_and_out(mask, bits_of(values), at::Scalar(kMagnitude));
  return mask.neg_().add_(bound).bitwise_right_shift_(31);
}

}  // namespace

at::ScalarType bits_type(Dtype dtype) { return dtype == Dtype::kFloat32 ? at::kInt : at::kShort; }
at::ScalarType value_type(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? at::kFloat : dtype == Dtype::kBFloat16 ? at::kBFloat16 : at::kHalf;
}

at::Tensor bits_of(const at::Tensor& values) { return values.view(values.element_size() == 2 ? at::kShort : at::kInt); }

at::Tensor operand64(const at::Tensor& values, Pool& pool) {
  if (!values.is_cpu()) return values;
  at::Tensor wide = pool.take(at::kDouble, values.numel()).view(values.sizes());
  return wide.copy_(values);
}

at::Tensor add_exact(const at::Tensor& product, const at::Tensor& addend, Pool& pool) {
  at::Tensor result = pool.take(at::kFloat, product.numel());
  if (product.is_cpu()) return result.copy_(product.add_(addend));
  return at::add_out(result, product, addend);
}

at::Tensor add_rounded(const at::Tensor& p, const at::Tensor& c, Pool& pool) {
  const int64_t n = p.numel();
  at::Tensor sum = pool.take(at::kDouble, n), part = pool.take(at::kDouble, n), rest = pool.take(at::kDouble, n);
  at::add_out(sum, p, c);
  at::sub_out(part, sum, p);     // c as the sum has it
  at::sub_out(rest, sum, part);  // p as the sum has it
  const at::Tensor error = p.sub_(rest).add_(at::sub_out(part, c, part));
  // Rounded away from zero where the error's sign is not the sum's: one down. Then odd, unless the error is zero.
  const at::Tensor bits = sum.view(at::kLong), away = part.view(at::kLong), inexact = error.view(at::kLong);
  at::bitwise_xor_out(const_cast<at::Tensor&>(away), bits, inexact);
  inexact.bitwise_and_(int64_t{0x7FFFFFFFFFFFFFFF}).clamp_max_(1);
  away.bitwise_right_shift_(63).bitwise_and_(inexact);  // one where it was rounded away
  bits.sub_(away).bitwise_or_(inexact);
  at::Tensor result = pool.take(at::kFloat, n);
  return result.copy_(sum);
}

at::Tensor positive_sum(const at::Tensor& small, const at::Tensor& large, Pool& pool) {
  at::Tensor sum = pool.take(at::kDouble, small.numel()).view(small.sizes());
  at::add_out(sum, small, large);
  at::sub_out(const_cast<at::Tensor&>(large), sum, large);  // small as the sum has it
  // -1, 0 or 1 with the error's sign: one down where it is negative, then odd unless it is zero.
  const at::Tensor sign = small.sub_(large).view(at::kLong).sign_(), bits = sum.view(at::kLong);
  bits.add_(sign.bitwise_right_shift(63)).bitwise_or_(sign.bitwise_and_(1));
  return sum;
}

at::Tensor multiply_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, Pool& pool) {
  const int64_t n = std::max({a.numel(), b.numel(), c.numel()});
  at::Tensor product = pool.take(at::kDouble, n);
  product.copy_(a);
  product.mul_(operand64(b, pool)).clamp_(-1e300, 1e300);  // an infinity would leave no error to look at
  return add_rounded(product, operand64(c, pool), pool);
}

at::Tensor nonfinite_mask(const at::Tensor& values, Pool& pool) { return above(values, kInfinity - 1, pool); }
at::Tensor nan_mask(const at::Tensor& values, Pool& pool) { return above(values, kInfinity, pool); }

at::Tensor mask_of(const at::Tensor& condition, at::ScalarType dtype) { return condition.to(dtype).neg_(); }

at::Tensor equal_mask(const at::Tensor& a, const at::Tensor& b, Pool& pool) {
  at::Tensor equal = pool.take(at::kBool, a.numel()), mask = pool.take(at::kInt, a.numel());
  return mask.copy_(at::eq_out(equal, a, b)).neg_();
}

at::Tensor mask_as(const at::Tensor& mask, at::ScalarType dtype, Pool& pool) {
  if (mask.scalar_type() == dtype) return mask;
  at::Tensor result = pool.take(dtype, mask.numel());
  return result.copy_(mask);
}

void choose_(const at::Tensor& bits, const at::Tensor& other, const at::Tensor& mask) {
  bits.bitwise_xor_(other).bitwise_and_(mask.bitwise_not_()).bitwise_xor_(other);
}

at::Tensor with_sign(const at::Tensor& value, const at::Tensor& sign) {
  return ((bits_of(value) & kMagnitude) | (bits_of(sign) & INT32_MIN)).view(at::kFloat);
}

at::Tensor rounded_bits(const at::Tensor& values, Dtype dtype, Pool& pool) {
  at::Tensor result = pool.take(value_type(dtype), values.numel());
  result.copy_(values);
  const at::Tensor bits = bits_of(result), mask = mask_as(nan_mask(values, pool), bits.scalar_type(), pool);
  const int32_t nan = dtype == Dtype::kFloat32 ? 0x7FC00000 : dtype == Dtype::kBFloat16 ? 0x7FC0 : 0x7E00;
  bits.bitwise_or_(mask);  // all ones, then the spelling
  bits.bitwise_xor_(mask.bitwise_and_(nan ^ -1));
  return bits;
}

at::Tensor stochastic_bits(const at::Tensor& values, Dtype dtype, const at::Tensor& words, Pool& pool) {
  const at::Tensor nearest = rounded_bits(values, dtype, pool);
  if (dtype == Dtype::kFloat32) return nearest;
  const at::Tensor bits = bits_of(values).to(at::kLong) & 0xFFFFFFFFll, word = words.to(at::kLong) & 0xFFFFFFFFll;
  at::Tensor drawn, kept;
  if (dtype == Dtype::kBFloat16) {
    const at::Tensor up = (bits + word.bitwise_right_shift(16)).bitwise_right_shift(16);
    drawn = at::where((up & 0x7F80).eq(0x7F80), bits.bitwise_right_shift(16), up);  // a finite value stays finite
    kept = (bits & kInfinity).eq(kInfinity);
  } else {
    const at::Tensor magnitude = bits & kMagnitude;
    const at::Tensor normal = (magnitude - 0x38000000 + word.bitwise_right_shift(19)).bitwise_right_shift(13);
    const at::Tensor scaled = values.abs().mul_(0x1p24);  // exact below 2^-14; others take `normal`
    const at::Tensor lower = scaled.clamp_max(2048).to(at::kInt);
    const at::Tensor up = unit_float(word) < scaled - lower.to(at::kFloat);
    drawn = at::where(magnitude.ge(0x38800000), normal, lower.to(at::kLong) + up.to(at::kLong)) |
            (bits.bitwise_right_shift(16) & 0x8000);
    kept = magnitude.gt(0x477FE000);  // beyond 65504 there is no finite upper neighbour
  }
  const at::Tensor result = drawn.to(at::kShort);
  choose_(result, nearest, mask_of(kept, at::kShort));
  return result;
}

}  // namespace faultline::numeric::portable
