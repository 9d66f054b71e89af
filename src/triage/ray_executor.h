// Trials as tasks of a Ray cluster. A helper in Python (python/faultline/ray_executor.py) speaks with Ray; we give it
// requests and get answers, a JSON line each, over its standard input and output. The campaign and its record stay
// here: a cluster only changes where a trial's process runs.
#pragma once

#include <filesystem>
#include <memory>

#include "triage/trial.h"

namespace faultline::triage {

class RayExecutor : public Executor {
 public:
  // Tasks that were run again because their worker or machine was lost.
  virtual int64_t lost() const = 0;
  virtual int64_t nodes() const = 0;
};

// Starts the helper with `python` and waits until it is connected to the cluster that RAY_ADDRESS names (else one on
// this machine). `program` must exist under the same path on every machine. RuntimeFailure: no Ray, no cluster.
std::unique_ptr<RayExecutor> ray_executor(const std::filesystem::path& program, const std::string& python,
                                          const std::atomic<bool>* interrupted);

}  // namespace faultline::triage
