// A smallest set of mitigations that stops a failure. Sets are tried by size, so the first that stops it is a smallest
// one. A set "stops it" after enough clean trials in a row that a failure as frequent as the baseline's lower bound
// would have been missed with no more than the stated probability over the whole search.
#pragma once

#include <functional>

#include "triage/trial.h"

namespace faultline::triage {

struct BisectOptions {
  std::vector<std::string> mitigations;
  int64_t baseline_trials = 16;
  int64_t max_trials = 2000;  // of the whole search
  double error = 0.05;        // that a set which does not stop the failure is reported
  std::function<void(const std::string& sentence)> say;
};

struct BisectStep {
  std::vector<std::string> mitigations;
  int64_t trials = 0, failures = 0, errors = 0;
  bool stops = false;
};

struct BisectResult {
  bool reproduced = false, found = false;
  std::vector<std::string> mitigations;
  double baseline_low = 0;  // lower bound of the baseline's rate, 95 % one-sided
  int64_t trials_each = 0, trials = 0;
  std::vector<BisectStep> steps;
  std::string sentence;
};

// Runs one trial with these mitigations; the number tells trials of a set apart.
using BisectTrial = std::function<TrialVerdict(const std::vector<std::string>& mitigations, int64_t index)>;

BisectResult bisect(const BisectOptions& options, const BisectTrial& trial);
// All non-empty subsets, smaller ones first.
std::vector<std::vector<std::string>> subsets_by_size(const std::vector<std::string>& names);

}  // namespace faultline::triage
