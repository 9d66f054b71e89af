#include "base/instruction_set.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"

namespace faultline {
namespace {

constexpr const char* kNames[] = {"portable", "avx2", "avx512", "avx512bf16", "amx", "neon", "armbf16"};

#if defined(__x86_64__)
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

// What this processor runs, the best last.
std::vector<InstructionSet> offered() {
  std::vector<InstructionSet> sets = {InstructionSet::kPortable};
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
        __builtin_cpu_supports("bmi2")))
    return sets;
  sets.push_back(InstructionSet::kAvx2);
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")))
    return sets;
  sets.push_back(InstructionSet::kAvx512);
  if (!__builtin_cpu_supports("avx512bf16")) return sets;
  sets.push_back(InstructionSet::kAvx512Bf16);
  if (has_amx_bf16()) sets.push_back(InstructionSet::kAmx);
  return sets;
}
#elif defined(__aarch64__)
std::vector<InstructionSet> offered() {
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16
  if ((getauxval(AT_HWCAP2) & kBf16) == 0) return {InstructionSet::kPortable, InstructionSet::kNeon};
  return {InstructionSet::kPortable, InstructionSet::kNeon, InstructionSet::kArmBf16};
}
#else
std::vector<InstructionSet> offered() { return {InstructionSet::kPortable}; }
#endif

InstructionSet choose() {
  const std::vector<InstructionSet> sets = offered();
  const char* wish = std::getenv("FAULTLINE_CPU_ISA");
  if (wish == nullptr || *wish == '\0') return sets.back();
  std::string names;
  for (const InstructionSet set : sets) {
    const std::string name = kNames[static_cast<int>(set)];
    if (wish == name) return set;
    names += (names.empty() ? "" : ", ") + name;
  }
  throw UsageError("FAULTLINE_CPU_ISA=" + std::string(wish) + ": this processor offers " + names);
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet chosen = choose();
  return chosen;
}

}  // namespace faultline
