// The instruction sets that CPU kernels are compiled for; each level has what the levels before it have. On 64-bit Arm
// portable code is the compiler's NEON, neon has parts written by hand (the faults'; the model's are in portable), and
// armbf16 adds dot products of bf16 pairs. FAULTLINE_CPU_ISA names one that is lower than the processor's best.
#pragma once

namespace faultline {

enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx, kNeon, kArmBf16 };

InstructionSet instruction_set();  // the best this processor runs, or the one asked for

}  // namespace faultline
