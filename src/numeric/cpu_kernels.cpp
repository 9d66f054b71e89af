// Picks the CPU kernels: the widest instruction set this processor has. All give the same bits (a test compares them).
#include "base/instruction_set.h"
#include "numeric/cpu/kernels.h"

namespace faultline::cpu {

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

}  // namespace faultline::cpu
