// One worker screens one device, or one core of a CPU: it goes through the work list until its time is over, checks by
// their weight, in batches that are judged with one wait. In some batches, at random, one launch more is made whose
// result gets one flipped bit: the canary. Its digest must differ, and must be right again once the bit is turned back.
// At the end everything that lay in memory meanwhile is looked at once more: patterns, and the operands of all checks.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "screen/failure.h"

namespace faultline::screen {

enum class When { kCold, kHot, kAfterIdle };
inline constexpr int kWhens = 3;
inline constexpr int64_t kLaunchesInRound = 4;
const char* when_name(When when);

struct Spent {
  int64_t launches = 0, wrong = 0;  // judged; canaries are not among them
  std::array<int64_t, kWhens> by_when{};
  double seconds = 0;  // canaries and judgement included
  int64_t canaries = 0, seen = 0;
  // With WorkerOptions::rates, of some batches: judged, and the same once more unjudged.
  int64_t batches = 0, timed_launches = 0, plain_launches = 0;
  double timed_seconds = 0, plain_seconds = 0;
};

struct WorkerOptions {
  at::Device device = at::kCPU;
  double seconds = 10;
  int64_t rounds = 0;  // above 0: so many rounds over all checks in place of seconds, whatever the machine's load
  uint64_t seed = 0;
  double batch_seconds = 0.02;
  int64_t batch_bytes = int64_t{2} << 30;  // of results that wait for their judgement
  bool rates = false;
  bool idle = true;  // one pause, and what is right or wrong after it
  const std::atomic<bool>* stop = nullptr;
  Elsewhere elsewhere = {};
  // For drills: called between batches, with what is under test.
  std::function<void(WorkList& list)> between = {};
};

struct WorkerResult {
  std::vector<Spent> spent;  // by check of the list
  std::vector<Failure> failures;
  int64_t failures_not_examined = 0;
  std::vector<std::string> missed_canaries;  // sentences
  std::string broken_off;                    // why; "": it ran to its end
  double seconds = 0;

  int64_t wrong() const;
  int64_t launches() const;
};

WorkerResult run_worker(WorkList& list, const WorkerOptions& options);

}  // namespace faultline::screen
