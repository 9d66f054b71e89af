// Whether what a rule means can be counted in advance, and whether its time comes: evidence stands on calls held
// against a census.
#pragma once

#include <c10/core/Device.h>

#include "tap/plan.h"

namespace faultline {

// Throws UsageError where a rule means some of the operators that compute a product without gradients on this device,
// and the number of rows decides which of them runs. scores: the actor also runs forwards without gradients.
void refuse_operators_chosen_by_rows(const Plan& plan, const c10::Device& device, bool scores = false);

// Throws UsageError where a rule's lifetime or its schedule leaves it silent in every step of the run.
void refuse_rules_without_a_step(const Plan& plan);

}  // namespace faultline
