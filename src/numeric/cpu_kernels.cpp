// Picks the CPU kernels: the widest instruction set this processor has. All give the same bits (a test compares them).
#include "base/instruction_set.h"
#include "numeric/cpu/kernels.h"

namespace faultline::cpu {

const Kernels& kernels() {
  const InstructionSet level = instruction_set();
  if (level >= InstructionSet::kAvx512) return avx512::kKernels;
  return level == InstructionSet::kAvx2 ? avx2::kKernels : portable::kKernels;
}

}  // namespace faultline::cpu
