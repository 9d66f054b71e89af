// One trial: a fresh process with its environment set before any runtime loads, a request with a nonce, an answer that
// repeats it, and a time limit for the whole process group. Whatever happens, a trial ends and says how.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "triage/answer.h"
#include "triage/plan.h"

namespace faultline::triage {

struct TrialRequest {
  std::string cell;
  int64_t index = 0;
  uint64_t seed = 0;
  int ranks = 2;
  std::string transport, device;
  Environment variables;
  Json config;
  double timeout = 600;

  std::string fingerprint() const;  // of what decides the result; the timeout does not
};

TrialRequest make_request(const Plan& plan, const Cell& cell, int64_t index);

// Where trials run: this machine, or a cluster (ray_executor.h).
class Executor {
 public:
  virtual ~Executor() = default;
  virtual int slots() const {
    return 1;
  }  // trials that may run at the same time; run() is then called by as many threads
  // `folder` exists and is empty; request.json, response.json and log.txt stay in it.
  virtual TrialResult run(const TrialRequest& request, const std::filesystem::path& folder) = 0;
};

// How a trial's process ended, as waitpid tells it.
struct Ended {
  int status = 0;
  bool timed_out = false, interrupted = false;
};
// Writes request.json. -> the nonce that its answer must repeat
std::string write_request(const TrialRequest& request, const std::filesystem::path& folder);
// What response.json and log.txt say, or how the process ended without an answer.
TrialResult read_result(const Ended& ended, double timeout, const std::filesystem::path& folder,
                        const std::string& nonce);

// Starts `program race --trial FOLDER`. `interrupted` ends the trial that is running.
std::unique_ptr<Executor> local_executor(std::filesystem::path program, const std::atomic<bool>* interrupted);

}  // namespace faultline::triage
