// One body, two uses: with libFuzzer a NAME_fuzz.cpp is a program whose entry is LLVMFuzzerTestOneInput; in replay_test
// (FAULTLINE_REPLAY) all of them are linked together, each registered under its name, and fed with their corpora.
//
//   FAULTLINE_FUZZ_TARGET(config_fuzz)(const uint8_t* data, size_t size) { …; return 0; }
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace faultline {

using FuzzTarget = int (*)(const uint8_t* data, size_t size);

inline std::map<std::string, FuzzTarget>& fuzz_targets() {
  static std::map<std::string, FuzzTarget> targets;
  return targets;
}

}  // namespace faultline

#ifdef FAULTLINE_REPLAY
#define FAULTLINE_FUZZ_TARGET(name)                                                                       \
  static int name##_target(const uint8_t* data, size_t size);                                             \
  static const bool name##_registered = ::faultline::fuzz_targets().emplace(#name, name##_target).second; \
  [[maybe_unused]] static const bool name##_used = name##_registered;                                     \
  static int name##_target
#else
#define FAULTLINE_FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput
#endif
