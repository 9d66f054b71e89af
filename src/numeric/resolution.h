// What a fault can be seen to do after the final rounding. A result rounded to nearest cannot show an error below half
// a unit in the last place, so a small relative fault on bf16 changes nothing at all: published runs at 1e-5 and 1e-4
// did not. Whether a fault is visible, and how strong it will look, is computed here by going through every deviate and
// every mantissa, not estimated. A fault that cannot be seen is refused, unless the rule rounds stochastically or says
// `expect: invisible`.
#pragma once

#include <optional>

#include "numeric/rule.h"

namespace faultline::numeric {

struct Visibility {
  double changed = 1;            // share of nonzero elements whose bits change, mantissas spread as in Benford's law
  double relative_rms = 0;       // rms of (y - x) / x after rounding
  double relative_rms_low = 0;   // the same for the mantissa that shows least …
  double relative_rms_high = 0;  // … and most
  double square_spread = 0;      // standard deviation of one element's squared relative error, at most
};

// For kinds whose effect is relative to x (relative_gaussian, gain); nothing for the others: theirs depends on the
// data.
std::optional<Visibility> predict_visibility(const Rule& rule, Dtype dtype, std::optional<double> strength = {});

// Throws UsageError where the rule cannot change one bit of a tensor of this dtype and does not say that it knows.
void check_visible(const Rule& rule, Dtype dtype);

}  // namespace faultline::numeric
