// `faultline run --merge FOLDER`: what was found out and written down before the other machine's trials is what they
// belong to; a folder that has none of it takes it over with them, and gives it back where the merge is refused.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "experiment/campaign.h"

namespace faultline::cli {

class Adopted {  // design, calibration and verdict
 public:
  Adopted(const std::filesystem::path& folder, const std::vector<std::string>& others);
  ~Adopted();
  Adopted(const Adopted&) = delete;
  Adopted& operator=(const Adopted&) = delete;
  void keep() { files_.clear(); }

 private:
  std::vector<std::filesystem::path> files_;
};

// Keeps what was adopted as soon as nothing is left to refuse. -> how many trials were new
int64_t merge_folders(Experiment& experiment, const std::vector<std::string>& others, Adopted& adopted);

}  // namespace faultline::cli
