// The instruction sets that CPU kernels are compiled for, each level with what the levels before it have.
// FAULTLINE_CPU_ISA names one that is lower than the processor's best.
#pragma once

namespace faultline {

enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

InstructionSet instruction_set();  // the best this processor runs, or the one asked for

}  // namespace faultline
