// What the arithmetic of an operator can hold. Operators add in fp32 whatever the type of their tensors: a sum of
// squares or a score of more than 3.4e38 becomes infinite on a healthy machine too, and what follows from it is
// arithmetic and no fault. So an element whose right answer, or a number on the way to it, is not finite or lies beyond
// the range has no known answer: it is taken out and counted as not tested. An operator whose result is out of range
// though nothing on the way to it should be still answers for it.
#pragma once

#include <ATen/core/Tensor.h>

#include "diagnose/observation.h"

namespace faultline::diagnose {

constexpr double kAccumulatorLimit = 0x1p126;  // of fp32's 2^128: sums are rounded and added in any order on the way
constexpr double kFlushed = 0x1p-126;  // instructions that take subnormal numbers for zero lose less than so much
constexpr double kMostScoreError = 8;  // of a softmax: beyond it the rounding of the scores decides who is attended to

// intermediate: how large numbers get on the way to each element, broadcast to expected; undefined: no larger than it.
// The observation has a tolerance.
void take_out_of_range(Observation& observation, const at::Tensor& intermediate);

// Rows for questions about a layer, from what the model itself brings there. Rows of one value far below the norm's
// epsilon are made larger by a power of two; rows that are not finite, or larger than any that a healthy model was seen
// to have (so that no relation may be expected of them), are replaced by made ones.
struct AskedRows {
  at::Tensor rows;      // like x
  at::Tensor replaced;  // int64, how many
};
AskedRows asked_rows(const at::Tensor& x, uint64_t seed);

}  // namespace faultline::diagnose
