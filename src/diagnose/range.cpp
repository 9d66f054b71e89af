#include "diagnose/range.h"

#include <ATen/ATen.h>

#include "diagnose/known_answers.h"

namespace faultline::diagnose {
namespace {

constexpr double kLargestAsked = 0x1p20;  // models hold up to about 2^17 in single channels
constexpr double kSmallestAsked = 0x1p-7;

double largest_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf: return 65504;
    case at::kBFloat16: return 0x1.fep127;
    case at::kDouble: return 0x1.fffffffffffffp1023;
    default: return 0x1.fffffep127;
  }
}

}  // namespace

void take_out_of_range(Observation& observation, const at::Tensor& intermediate) {
  at::Tensor &expected = observation.expected, &tolerance = observation.tolerance;
  // Each comparison is false for NaN.
  at::Tensor held = (expected.abs() + tolerance).lt(largest_of(observation.observed.scalar_type()));
  if (intermediate.defined()) held = held.logical_and(intermediate.lt(kAccumulatorLimit));
  const at::Tensor outside = held.logical_not();
  observation.untested = outside.sum();
  expected = expected.masked_fill(outside, 0);
  tolerance = tolerance.masked_fill(outside, 0);
  observation.observed = observation.observed.masked_fill(outside, 0);
}

AskedRows asked_rows(const at::Tensor& x, uint64_t seed) {
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor held = wide.abs().amax(1, true).le(kLargestAsked);
  const at::Tensor size = wide.square().mean(1, true).sqrt();
  const at::Tensor small = size.gt(0).logical_and(size.lt(kSmallestAsked));
  const at::Tensor factor = at::where(small, at::exp2(-at::floor(at::log2(size))), at::ones_like(size));
  const at::Tensor made = patterns(x.size(1), 8, seed);
  const at::Tensor index = at::arange(x.size(0), at::kLong).remainder(made.size(0));
  const at::Tensor instead = made.index_select(0, index).to(x.device());
  return {at::where(held, wide * factor, instead).to(x.scalar_type()), held.logical_not().sum()};
}

}  // namespace faultline::diagnose
