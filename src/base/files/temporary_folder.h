// A folder of a name that nobody can have foreseen, and that goes away with its owner.
#pragma once

#include <filesystem>
#include <string>

namespace faultline {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& purpose = "test");  // part of its name
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace faultline
