// Runs the trials of a campaign, whatever they are and wherever an executor takes them: hands them out as long as there
// are some, gives each answer to the campaign, and tries a trial again whose process was killed or lost with its
// machine. One rule for all: such a trial is tried four times, one that ended by itself once.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "base/error.h"
#include "record/campaign_store.h"
#include "trials/executor.h"

namespace faultline::trials {

inline constexpr int kTriesOfATrial = 4;

// What a kind of trial brings. All calls come from the thread that runs them.
class Work {
 public:
  virtual ~Work() = default;
  virtual std::optional<record::TrialKey> next() = 0;  // nothing: for now there is none to begin
  // A process for trials: for this one alone where they are asked by files (Task::answers is false), else for it and
  // what follows.
  virtual Task task(const record::TrialKey& first) = 0;
  virtual void answered(const record::TrialKey&, const std::string& /*line*/) { FL_ASSERT(false); }
  // Whether the end of a process of one trial is that trial's result.
  virtual bool is_result(const TaskEnd& end) const { return end.is_good(); }
  virtual void ended(const record::TrialKey&, const Task&, const TaskEnd&) { FL_ASSERT(false); }
  // A trial without answer or result that is not tried again. May throw, which ends the campaign.
  virtual void failed(const record::TrialKey&, const Task&, const TaskEnd&) = 0;
};

struct RunnerEnd {
  bool interrupted = false;
  int64_t lost = 0;  // trials that were tried again
};

// pending: how many there will be, at most; it decides how many a process is given where it takes them all at once.
RunnerEnd run(Executor& executor, Work& work, int64_t pending);

// One task by itself, on an executor that runs nothing else.
TaskEnd run_alone(Executor& executor, const Task& task);

std::string line_of(const record::TrialKey& trial);  // as a worker is asked for it
record::TrialKey trial_of(const std::string& line);  // RuntimeFailure where it names none

}  // namespace faultline::trials
