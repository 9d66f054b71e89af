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

// Where trials run. Local here; a cluster may offer its own.
class Executor {
 public:
  virtual ~Executor() = default;
  // `folder` exists and is empty; request.json, response.json and log.txt stay in it.
  virtual TrialResult run(const TrialRequest& request, const std::filesystem::path& folder) = 0;
};

// Starts `program race --trial FOLDER`. `interrupted` ends the trial that is running.
std::unique_ptr<Executor> local_executor(std::filesystem::path program, const std::atomic<bool>* interrupted);

}  // namespace faultline::triage
