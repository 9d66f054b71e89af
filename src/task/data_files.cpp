#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/machine.h"
#include "task/gsm8k.h"

namespace faultline::task {
namespace fs = std::filesystem;
namespace {

std::vector<std::string> data_folders() {
  if (const char* wish = std::getenv("FAULTLINE_DATA"); wish != nullptr && *wish != '\0') return {wish};
  std::vector<std::string> folders;
  std::error_code ignored;
  for (const fs::path& beside : {library_folder(), fs::read_symlink("/proc/self/exe", ignored).parent_path()}) {
    if (beside.empty()) continue;
    folders.push_back((beside / "data").string());
    folders.push_back((beside.parent_path() / "data").string());
  }
  folders.emplace_back(FAULTLINE_SOURCE_DATA);
  return folders;
}

}  // namespace

fs::path data_file(const std::string& name) {
  const std::vector<std::string> folders = data_folders();
  for (const std::string& folder : folders) {
    std::error_code ignored;
    if (fs::is_regular_file(fs::path(folder) / name, ignored)) return fs::path(folder) / name;
  }
  throw UsageError(fmt::format("{} was not found in {}; set FAULTLINE_DATA to the folder 'data' of the project", name,
                               fmt::join(folders, ", ")));
}

}  // namespace faultline::task
