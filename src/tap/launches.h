// Kernel launches of this process, recorded below the dispatcher: CUPTI's records of every kernel that runs on a GPU
// between begin and end, whoever launched it, kernels of replayed graphs included. Only one tool at a time can have
// CUPTI: where another one has it, nothing is begun and a sentence says so. A window costs about a microsecond a
// launch; outside of one a scope costs the load of one flag.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "base/json.h"
#include "tap/cupti.h"
#include "tap/launch_join.h"

namespace faultline::tap {

// Why there is no proof by launches; decided by, where the sentence is for people.
enum class LaunchAbsence {
  kNoDevice,      // "no_device": no GPU, or CUPTI cannot start its driver
  kNoCupti,       // "no_cupti": no library
  kOtherVersion,  // "other_version": a CUPTI whose records are not known
  kTaken,         // "taken": a profiler or another tool has CUPTI, or a window is open
  kIncomplete,    // "incomplete": records were lost
  kNotBegun,      // "not_begun": no window is open in this process
};
std::string_view name_of(LaunchAbsence absence);
struct LaunchesAbsent {
  LaunchAbsence reason;
  std::string why;  // a sentence
};

struct LaunchCost {
  double begin_s = 0, end_s = 0, window_s = 0;  // seconds: to begin, to drain at the end, in between
  int64_t records = 0, buffers = 0, scopes = 0;
  int64_t left_out = 0;  // launches beyond the most that a window keeps (4,194,304)
};
struct RecordedLaunches {
  std::optional<LaunchesAbsent> absent;
  LaunchList list;
  LaunchCost cost;
};

// scopes: record which wrapped operator launched a kernel, too; for eager code under a plan.
std::optional<LaunchesAbsent> begin_launches(bool scopes);
// The same with a CUPTI that was found elsewhere. other_profiler: torch's own is active.
std::optional<LaunchesAbsent> begin_launches_with(const Cupti& cupti, bool scopes, bool other_profiler);
// Waits for the GPUs that this process uses, so never inside a capture.
RecordedLaunches end_launches();
RecordedLaunches end_launches_with(bool other_profiler);

bool torch_profiler_active();

// {"available", "reason", "why", "launches", "in_graphs", "families", "cost"[, "list"]}
Json to_json(const RecordedLaunches& recorded, bool listed);

namespace launches {
extern std::atomic<bool> recording_scopes;
void push(uint64_t row);
void pop();
}  // namespace launches

inline bool recording_launch_scopes() { return launches::recording_scopes.load(std::memory_order_relaxed); }

// Around a wrapped operator and its fault: launches in between carry one number, made of a running number and the row;
// of scopes inside each other the outermost one's. True: pushed, and to be popped by the same thread.
inline bool push_launch_scope(uint64_t row) {
  if (!recording_launch_scopes()) return false;
  launches::push(row);
  return true;
}
inline void pop_launch_scope() { launches::pop(); }

class LaunchScope {
 public:
  explicit LaunchScope(uint64_t row) : pushed_(push_launch_scope(row)) {}
  ~LaunchScope() {
    if (pushed_) pop_launch_scope();
  }
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;

 private:
  bool pushed_;
};

}  // namespace faultline::tap
