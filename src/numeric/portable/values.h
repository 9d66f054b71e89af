// Numbers as tensors: storage types and their roundings, an exactly rounded multiply-add, selection by masks of bits.
// at::where and comparisons cost a CPU five to twenty times what an integer operation does, so that masks are integers
// of all ones or none wherever a whole chunk goes through.
#pragma once

#include <ATen/core/Tensor.h>

#include "numeric/dtype.h"
#include "numeric/portable/words.h"

namespace faultline::numeric::portable {

at::ScalarType bits_type(Dtype dtype);   // int16 or int32
at::ScalarType value_type(Dtype dtype);  // bf16, fp16 or fp32

at::Tensor bits_of(const at::Tensor& values);  // the same memory as integers

// Note [Multiply-add in fp64]
// The kernels' fused_multiply_add rounds a * b + c once to fp32. ATen has no such operator, and whether addcmul fuses
// is its own affair. In fp64 a product of two fp32 numbers is exact (48 bits); the sum s of it and c is rounded to 53
// bits and then again to fp32's 24, which goes wrong where s is halfway between two fp32 numbers and was not exact.
// Rounding s to odd mends that (Boldo and Melquiond, 2008): where the sum's error, which is known exactly (Knuth's
// TwoSum), is not zero, the neighbour of s with an odd last bit is taken; 53 bits are more than the 24 + 2 that this
// needs, subnormal results included. Three places do without, because their sums are exact in fp64 or their errors
// cannot be seen:
//   - deviates: f * slope + base spans at most 52 bits in every segment of the tables, scaled or not (gaussian_test);
//   - a + b with nothing multiplied;
//   - g * x + x that is rounded to 16 bits to nearest: x has at most 11 bits, so that for |g| >= 2^-18 the sum is exact
//     (53 bits), and for smaller ones it lies so near to x that it is rounded to x either way.
// fp32 numbers as what an operator of fp64 takes: on a CPU a copy, which costs less than an operator of two types;
// elsewhere the tensor, since each operator is one more to wait for.
at::Tensor operand64(const at::Tensor& values, Pool& pool);
// -> fp32. `product`: fp64, of the pool, overwritten. `addend`: an operand, fp64 or fp32.
at::Tensor add_rounded(const at::Tensor& product, const at::Tensor& addend, Pool& pool);
// The same without the care.
at::Tensor add_exact(const at::Tensor& product, const at::Tensor& addend, Pool& pool);
// The sum as a fp64 number that is rounded to fp32 as the exact sum would be: `small` and `large` fp64, of the pool,
// not negative, |small| <= |large|; overwritten.
at::Tensor positive_sum(const at::Tensor& small, const at::Tensor& large, Pool& pool);

at::Tensor multiply_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, Pool& pool);  // fp32 -> fp32

// All ones (as int32) where fp32 values are not finite, or NaN.
at::Tensor nonfinite_mask(const at::Tensor& values, Pool& pool);
at::Tensor nan_mask(const at::Tensor& values, Pool& pool);
at::Tensor mask_of(const at::Tensor& condition, at::ScalarType dtype);        // bool -> 0 or all ones
at::Tensor equal_mask(const at::Tensor& a, const at::Tensor& b, Pool& pool);  // int32, fp32 values compared
// The same mask of another width.
at::Tensor mask_as(const at::Tensor& mask, at::ScalarType dtype, Pool& pool);
// Where the mask is set, bits become `other`. The mask is lost.
void choose_(const at::Tensor& bits, const at::Tensor& other, const at::Tensor& mask);

at::Tensor with_sign(const at::Tensor& value, const at::Tensor& sign);  // fp32

// fp32 -> bits of the dtype, to nearest even; one spelling of NaN.
at::Tensor rounded_bits(const at::Tensor& values, Dtype dtype, Pool& pool);
at::Tensor stochastic_bits(const at::Tensor& values, Dtype dtype, const at::Tensor& words, Pool& pool);

}  // namespace faultline::numeric::portable
