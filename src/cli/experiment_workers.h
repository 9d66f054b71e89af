// Worker processes of `faultline run --jobs N`: copies of this program with the same words and --worker, which claim
// trials until none is free. A worker that was killed is started again; one that failed stops the experiment, with its
// own words.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace faultline::cli {

struct WorkerOptions {
  std::vector<std::string> arguments;  // of this program, as typed
  int64_t jobs = 2;
  std::filesystem::path folder;          // logs go there
  std::function<int64_t()> left;         // trials that are not done
  std::function<void(int64_t)> on_left;  // told when it changes
};
void run_workers(const WorkerOptions& options);

}  // namespace faultline::cli
