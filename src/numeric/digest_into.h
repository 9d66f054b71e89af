// A digest written into a table, by one kernel: for loops that take hundreds of them and read all at once.
#pragma once

#include <ATen/core/Tensor.h>

namespace faultline {

inline constexpr int64_t kDigestStateWords = 4;  // the digest, then three of work

// `state`: kDigestStateWords words on x's device, those of work zero before and after. The work is queued on x's
// current stream.
void digest_into(const at::Tensor& x, int64_t* state);

}  // namespace faultline
