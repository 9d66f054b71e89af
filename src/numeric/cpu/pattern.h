// The pattern kernels of one instruction set; see numeric/pattern.h. `first` is the index of data's first element in
// the pattern.
#pragma once

#include "numeric/pattern.h"

namespace faultline::numeric::cpu {

struct PatternKernels {
  void (*fill)(const Pattern&, uint32_t first, int64_t elements, void* data);
  void (*check)(const Pattern&, uint32_t poison, uint32_t first, int64_t elements, const void* data, PatternCheck* row);
};

const PatternKernels& pattern_kernels();  // of the instruction set that kernels() chose

namespace portable {
extern const PatternKernels kPatternKernels;
}
namespace avx2 {
extern const PatternKernels kPatternKernels;
}
namespace avx512 {
extern const PatternKernels kPatternKernels;
}
namespace neon {
extern const PatternKernels kPatternKernels;
}

}  // namespace faultline::numeric::cpu
