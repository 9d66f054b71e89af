// The patterns of numeric/pattern.h in ATen's operators, for devices that have no kernels of ours: filled and checked
// on the device, in chunks of bounded memory, without waiting for it. Tried once a device against the CPU's kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "numeric/pattern.h"

namespace faultline::numeric::portable {

// `buffer`: contiguous, of the pattern's dtype. Throws UsageError where the device's integers are not the CPU's.
void fill_pattern(const at::Tensor& buffer, const Pattern& pattern);
// `row`: the words of a PatternCheck on the same device, zero before.
void check_pattern(const at::Tensor& buffer, const Pattern& pattern, uint32_t poison, const at::Tensor& row);

}  // namespace faultline::numeric::portable
