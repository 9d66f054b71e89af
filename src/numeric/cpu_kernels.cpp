// Picks the CPU kernels: the widest instruction set this processor has. All give the same bits (a test compares them).
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "numeric/cpu/kernels.h"

namespace faultline::cpu {
namespace {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const Kernels& choose() {
  const char* wish = std::getenv("FAULTLINE_CPU_ISA");
  const std::string_view name = wish == nullptr ? "" : wish;
  if (name == "portable") return portable::kKernels;
  if (name == "avx2" && has_avx2()) return avx2::kKernels;
  if (name == "avx512" && has_avx512()) return avx512::kKernels;
  if (!name.empty())
    throw UsageError("FAULTLINE_CPU_ISA=" + std::string(name) + ": this processor offers portable" +
                     (has_avx2() ? ", avx2" : "") + (has_avx512() ? ", avx512" : ""));
  return has_avx512() ? avx512::kKernels : has_avx2() ? avx2::kKernels : portable::kKernels;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace faultline::cpu
