#include "base/instruction_set.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace faultline {
namespace {

constexpr const char* kNames[] = {"portable", "avx2", "avx512", "avx512bf16", "amx"};

// Linux hands out the tile registers (8 KiB a thread) only to processes that ask: arch_prctl(ARCH_REQ_XCOMP_PERM,
// XFEATURE_XTILEDATA). It also refuses where processor or kernel do not have them.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTile) != 0 && may_use_tiles();
}

InstructionSet best() {
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
        __builtin_cpu_supports("bmi2")))
    return InstructionSet::kPortable;
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")))
    return InstructionSet::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return InstructionSet::kAvx512;
  return has_amx_bf16() ? InstructionSet::kAmx : InstructionSet::kAvx512Bf16;
}

InstructionSet choose() {
  const InstructionSet most = best();
  const char* wish = std::getenv("FAULTLINE_CPU_ISA");
  if (wish == nullptr || *wish == '\0') return most;
  std::string offered;
  for (int level = 0; level <= static_cast<int>(most); ++level) {
    if (std::string(wish) == kNames[level]) return static_cast<InstructionSet>(level);
    offered += (level == 0 ? "" : ", ") + std::string(kNames[level]);
  }
  throw UsageError("FAULTLINE_CPU_ISA=" + std::string(wish) + ": this processor offers " + offered);
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet chosen = choose();
  return chosen;
}

}  // namespace faultline
