// The pattern kernels of a GPU behind plain functions; see numeric/pattern.h. Nothing here synchronises.
#pragma once

#include "numeric/pattern.h"

namespace faultline::cuda {

void fill_pattern(const Pattern& pattern, int64_t elements, void* data, void* stream);
// Adds to `row`, which lies in device memory and starts as zeros.
void check_pattern(const Pattern& pattern, uint32_t poison, int64_t elements, const void* data, PatternCheck* row,
                   void* stream);

}  // namespace faultline::cuda
