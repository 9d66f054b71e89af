// What a trial answered. The text comes from another process, which may have been killed, run out of disk or be broken
// on purpose, so it is read as somebody else's: whatever it holds, the result is a verdict or an error with a sentence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace faultline::triage {

enum class TrialVerdict { kPass, kFail, kError };
const char* verdict_name(TrialVerdict verdict);

struct TrialResult {
  TrialVerdict verdict = TrialVerdict::kError;
  std::string outcome =
      "did_not_run";  // completed, did_not_run, crashed_after_iterations, hang, stopped_at_first_corruption; of a
                      // command: did_not_run, crashed, hung, unproven, wrong, clean; over its cell: differs
  std::string severity = "ok";  // ok < workload_failed < setup_failed < infrastructure_failed
  std::string sentence;
  Json result = nullptr;  // the run's, with all ranks' evidence
  double seconds = 0;
};

// What its ranks' evidence adds up to.
struct EvidenceSums {
  int64_t events = 0, collectives = 0, bytes = 0;
  std::optional<double> step_seconds;  // the slowest rank's median: what the trial waited for, without its warm-up
};
EvidenceSums sums_of(const Json& result);  // nlohmann's exception where it is no result

// Of the trial that was asked with this nonce; never throws. One that passed or failed has evidence that can be summed.
TrialResult read_answer(std::string_view text, const std::string& nonce);

}  // namespace faultline::triage
