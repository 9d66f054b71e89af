// One body, two uses: with libFuzzer a NAME_fuzz.cpp is a program whose entry is LLVMFuzzerTestOneInput; in replay_test
// (FAULTLINE_REPLAY) all of them are linked together, each registered under its name, and fed with their corpora.
//
//   FAULTLINE_FUZZ_TARGET(config_fuzz)(const uint8_t* data, size_t size) { …; return 0; }
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

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

// A folder in memory for fuzz targets whose code under test takes a path; it goes with the process.

namespace faultline {

class FuzzFolder {
 public:
  FuzzFolder() {
    const std::filesystem::path memory = "/dev/shm";
    std::string name = ((::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path()) /
                        "faultline-fuzz-XXXXXX")
                           .string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~FuzzFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FuzzFolder(const FuzzFolder&) = delete;
  FuzzFolder& operator=(const FuzzFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc) << bytes;
    return path_ / name;
  }
  void remove(const std::string& name) const {
    std::error_code ignored;
    std::filesystem::remove(path_ / name, ignored);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace faultline
