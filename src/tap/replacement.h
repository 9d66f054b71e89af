// Faults that replace what an operator computes: a matrix product summed in a narrow accumulator, a function looked up
// in a table. The replacement is computed beside the operator, from its arguments, and written over its result by the
// same kernel that counts every other fault.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>

#include "numeric/rule.h"

namespace faultline {

// From the arguments of a call that has not run yet. `why`: set where the rule's kind has nothing to say about this
// operator; the result is then undefined. Throws UsageError where the parameters do not fit its shapes.
at::Tensor compute_replacement(const Rule& rule, const std::string& base, c10::ArrayRef<c10::IValue> arguments,
                               std::string& why);

}  // namespace faultline
