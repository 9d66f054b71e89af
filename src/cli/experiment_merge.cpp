#include "cli/experiment_command.h"

namespace faultline::cli {

namespace fs = std::filesystem;

Adopted::Adopted(const fs::path& folder, const std::vector<std::string>& others) {
  for (const std::string& other : others)
    for (const char* name : {"design.json", "calibration.json", "verdict.json"}) {
      if (!fs::exists(fs::path(other) / name) || fs::exists(folder / name)) continue;
      fs::create_directories(folder);
      fs::copy_file(fs::path(other) / name, folder / name);
      files_.push_back(folder / name);
    }
}

Adopted::~Adopted() {
  std::error_code ignored;
  for (const fs::path& file : files_) fs::remove(file, ignored);
}

int64_t merge_folders(experiment::Experiment& experiment, const std::vector<std::string>& others, Adopted& adopted) {
  std::vector<experiment::MergeSource> sources;
  for (const std::string& other : others) sources.push_back({other, "--merge " + other});
  experiment.check_merge(sources);
  adopted.keep();
  return experiment.merge(sources);
}

}  // namespace faultline::cli
