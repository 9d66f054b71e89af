#include "base/files/temporary_folder.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace faultline {

TemporaryFolder::TemporaryFolder(const std::string& purpose) {
  std::string name = (std::filesystem::temp_directory_path() / fmt::format("faultline-{}-XXXXXX", purpose)).string();
  if (::mkdtemp(name.data()) == nullptr)
    throw RuntimeFailure(fmt::format("cannot create {}: {}", name, std::strerror(errno)));
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace faultline
