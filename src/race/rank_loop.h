// One rank's part of a run: the loop over iterations and layers, the checks, the exchange with the other ranks and the
// agreed end. It knows neither threads nor processes: it gets a backend for the data, one for the control words (on the
// CPU), and returns what it saw. The order on the device is fill, collective, check, compute, check, …; nothing in a
// layer waits for the device (docs/lessons.md 45), tables come home once an iteration.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "race/config.h"
#include "race/finding.h"
#include "race/heartbeat.h"
#include "race/hooks.h"
#include "race/step_times.h"

namespace c10d {
class Backend;
}

namespace faultline::race {

inline constexpr int64_t kCanaryIteration = -1'000'000;

struct RankOptions {
  int rank = 0;
  int ranks = 1;
  at::Device device = at::kCPU;
  std::vector<Hook*> hooks;
  Heartbeat* heartbeat = nullptr;        // required
  std::mutex* evidence_mutex = nullptr;  // held while the evidence changes, for who reads it from another thread
  const std::atomic<bool>* interrupted = nullptr;             // ^C: all ranks end after the iteration
  std::function<void(int64_t done, int64_t total)> progress;  // every log_interval verified iterations, rank 0
  bool watches_calls = false;      // the data group's calls need not wait for others: a long one is this rank's own
  bool alternate_digests = false;  // digests in every second iteration, to measure their cost
  Reference reference;             // the golden
};

struct Canary {
  bool ran = false, detected = false, attributed = false;
};

struct RankEvidence {
  int rank = 0;
  Findings findings;
  Canary canary;
  Reference reference;
  int64_t iterations = 0;  // verified
  bool stopped = false;    // at a corruption, by agreement
  bool interrupted = false;
  StepTimes step_seconds, step_seconds_plain;  // device time of verified iterations; the latter without digests
  int64_t collectives = 0;
  int64_t collective_bytes = 0;  // received
};

class RankLoop {
 public:
  RankLoop(const Config& config, const RankOptions& options, c10::intrusive_ptr<c10d::Backend> data,
           c10::intrusive_ptr<c10d::Backend> control);
  ~RankLoop();
  void run(RankEvidence& evidence);  // fills it as it goes: what was seen before a failure is kept

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace faultline::race
