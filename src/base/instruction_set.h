// The instruction sets that CPU kernels are compiled for. On x86-64 each level has what the levels before it have; on
// 64-bit Arm, portable means NEON, and armbf16 adds dot products of bf16 pairs. FAULTLINE_CPU_ISA names one that is
// lower than the processor's best.
#pragma once

namespace faultline {

enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx, kArmBf16 };

InstructionSet instruction_set();  // the best this processor runs, or the one asked for

}  // namespace faultline
