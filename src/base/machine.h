// The instruction sets that CPU kernels are compiled for; each level has what the levels before it have. On 64-bit Arm
// portable code is the compiler's NEON, neon has parts written by hand (the faults'; the model's are in portable), and
// armbf16 adds dot products of bf16 pairs. FAULTLINE_CPU_ISA names one that is lower than the processor's best.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace faultline {

enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx, kNeon, kArmBf16 };

InstructionSet instruction_set();  // the best this processor runs, or the one asked for

// The folder in which libfaultline.so lies: what ships beside it (data, the parquet module) is found from there,
// wherever the project was built or installed.

std::filesystem::path library_folder();  // without symbolic links; empty where the loader does not say

std::filesystem::path own_program();  // that runs: what starts further processes of it

// The name of this machine, as files and other processes are told it.

std::string host_name();  // "unknown" where it has none

// Where records get their time from. A clock is a function, so that a test passes its own and two runs of it write the
// same bytes.

// Seconds since 1970-01-01 UTC.
using Clock = std::function<double()>;

double system_seconds();

// 20260131T235959Z: sorts by time and is a valid file name everywhere.
std::string utc_timestamp(double seconds);
std::string utc_text(double seconds, const char* format);  // as strftime says it

}  // namespace faultline
