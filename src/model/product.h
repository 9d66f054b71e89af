// Which operator computes a product without gradients: our own, or torch's for many rows on a GPU.
#pragma once

#include <c10/core/Device.h>

namespace faultline {

// Whether the number of rows decides. How often either operator runs is then known only to who knows all prompts; how
// often a product runs, to everybody.
bool product_depends_on_rows(const c10::Device& device);

}  // namespace faultline
