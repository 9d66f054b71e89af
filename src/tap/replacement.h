// The parts that computations with a fault inside are put together from: a sum in a narrow accumulator, a function by
// table or straight pieces. Whose operators they replace: torch's in replacement.cpp, our own model's in
// own_replacement.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>

#include "numeric/rule.h"

namespace faultline::tap {

// a @ b, and the sum of x over a dimension, in fp32 but for the accumulator of the rule.
at::Tensor accumulated_product(const numeric::Rule& rule, const at::Tensor& a, const at::Tensor& b);
at::Tensor accumulated_sum(const numeric::Rule& rule, const at::Tensor& x, int64_t dim, bool keep);
// f~(x) in fp32.
at::Tensor approximated(const numeric::ApproximateSpec& spec, const at::Tensor& x);

// Operators of our own model, and torch's attention, which it calls.
bool replaces_own_operator(const numeric::Rule& rule, const std::string& base);
// `why`: as of compute_replacement.
at::Tensor replace_own_operator(const numeric::Rule& rule, const std::string& base,
                                c10::ArrayRef<c10::IValue> arguments, std::string& why);

}  // namespace faultline::tap
