// Picks the CPU kernels: the widest instruction set this processor has. All give the same bits (a test compares them).
#include "base/machine.h"
#include "numeric/cpu/kernels.h"
#include "numeric/cpu/pattern.h"

namespace faultline::numeric::cpu {

const Kernels& kernels() {
  [[maybe_unused]] const InstructionSet level = instruction_set();  // refuses a wish that cannot be met
#if defined(__x86_64__)
  if (level >= InstructionSet::kAvx512) return avx512::kKernels;
  if (level == InstructionSet::kAvx2) return avx2::kKernels;
#elif defined(__aarch64__)
  if (level >= InstructionSet::kNeon) return neon::kKernels;
#endif
  return portable::kKernels;
}

const PatternKernels& pattern_kernels() {
#if defined(__x86_64__)
  if (&kernels() == &avx512::kKernels) return avx512::kPatternKernels;
  if (&kernels() == &avx2::kKernels) return avx2::kPatternKernels;
#elif defined(__aarch64__)
  if (&kernels() == &neon::kKernels) return neon::kPatternKernels;
#endif
  return portable::kPatternKernels;
}

}  // namespace faultline::numeric::cpu
