// Which operator computes a product without gradients: our own, or torch's for many rows on a GPU.
#pragma once

#include <c10/core/Device.h>

namespace faultline::model {

// Whether the number of rows decides. How often either operator runs is then known only to who knows all prompts; how
// often a product runs, to everybody.
bool product_depends_on_rows(const c10::Device& device);

// Note [bf16 products without bf16 instructions]: on a processor without them torch multiplies bf16 matrices several
// times slower than fp32 ones (3.5 times on x86 with AVX-512, 9 times on a Neoverse N1). There aten::mm and aten::addmm
// of bf16 matrices are computed in fp32 and rounded once. The kernels are replaced below the dispatcher's names: taps,
// censuses and gradients (whose products are aten::mm again) see the operators and the types they always saw.

bool multiplies_bf16_slowly();  // as base/machine.h sees this processor

// For the rest of this process, and for everything in it: what owns the process calls it, never a library that is
// loaded into somebody else's.
void multiply_bf16_in_fp32();

}  // namespace faultline::model
