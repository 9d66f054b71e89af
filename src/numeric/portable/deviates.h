// Normal deviates by table, as gaussian.h has them. A 16-bit word has 32,768 different deviates: they are worked out
// once a call and looked up. A 32-bit word's segment is looked up, and its line is followed in fp64, where it is exact
// (Note [Multiply-add in fp64]).
#pragma once

#include "numeric/portable/values.h"

namespace faultline::numeric::portable {

class Deviates {
 public:
  // `scale`: fp32 scalar that is folded into the table, or undefined.
  Deviates(Dtype dtype, const at::Tensor& scale, const at::Device& device);
  // fp32 deviates of words (int32: one a deviate, or for 16-bit tensors two).
  at::Tensor of(const at::Tensor& words, Pool& pool) const;
  at::Tensor of_halves(const at::Tensor& halves, Pool& pool) const;  // int16 words of a 16-bit tensor

 private:
  bool half_;
  at::Tensor deviates_;      // half: 32,768 of fp32, by the odd word's order
  at::Tensor slope_, base_;  // else: fp64, by the upper 13 bits of the odd word as fp32
};

}  // namespace faultline::numeric::portable
