// Maximum, mean magnitude and standard deviation of rows, channels or the tensor, with statistics.h's order of
// additions.
#pragma once

#include <ATen/core/Tensor.h>

#include "numeric/statistics.h"

namespace faultline::numeric::portable {

// x: contiguous, (rows, columns). -> fp32, one a row, a channel, or one.
at::Tensor reference(const ReferenceArguments& arguments, Axis axis, const at::Tensor& x);

}  // namespace faultline::numeric::portable
