// Whether what a rule means can be counted in advance: evidence stands on calls held against a census.
#pragma once

#include <c10/core/Device.h>

#include "tap/plan.h"

namespace faultline {

// Throws UsageError where a rule means some of the operators that compute a product without gradients on this device,
// and the number of rows decides which of them runs. scores: the actor also runs forwards without gradients.
void refuse_operators_chosen_by_rows(const Plan& plan, const c10::Device& device, bool scores = false);

}  // namespace faultline
