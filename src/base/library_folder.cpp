#include "base/library_folder.h"

#include <dlfcn.h>

namespace faultline {

std::filesystem::path library_folder() {
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<const void*>(&library_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : path.parent_path();
}

}  // namespace faultline
