// A digest written into a table, by one kernel: for loops that take hundreds of them and read all at once.
#pragma once

#include <ATen/core/Tensor.h>

#include "numeric/digest.h"

namespace faultline {

// `state`: kDigestStateWords words a piece on x's device, those of work zero before and after. x is taken as so many
// pieces of equal size, one after the other. The work is queued on x's current stream.
void digest_into(const at::Tensor& x, int64_t* state, int64_t pieces = 1);

}  // namespace faultline
