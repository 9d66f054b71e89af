#include "base/machine.h"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <ctime>

#include "base/error.h"

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

std::filesystem::path library_folder() {
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<const void*>(&library_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : path.parent_path();
}

std::filesystem::path own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::string host_name() {
  char name[256] = "unknown";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Time in records is UTC: a run directory may be read in another time zone than it was written in.

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_timestamp(double seconds) { return utc_text(seconds, "%Y%m%dT%H%M%SZ"); }

std::string utc_text(double seconds, const char* format) {
  FL_ASSERT(seconds >= 0 && seconds < 253402300800.0);  // years 1970 to 9999
  const auto whole = static_cast<std::time_t>(std::floor(seconds));
  std::tm parts{};
  gmtime_r(&whole, &parts);
  char text[32];
  std::strftime(text, sizeof text, format, &parts);
  return text;
}

}  // namespace faultline
