// The trials of an experiment as work for an executor. In this process and in workers of this machine all share the
// folder: each trial is claimed, run and stored there. On a cluster a trial is a process with a copy of what was found
// out before the first trial; its store and its run come back and are taken like another machine's.
#pragma once

#include <functional>

#include "experiment/campaign.h"
#include "trials/runner.h"

namespace faultline::experiment {

// Runs trials in this process, one after the other. The experiment is open, and the model the one it was opened with.
class ExperimentBench {
 public:
  ExperimentBench(Experiment& experiment, lab::LoadedModel& loaded, ExperimentProgress progress);
  ~ExperimentBench();  // the model has its weights again
  ExperimentBench(const ExperimentBench&) = delete;
  ExperimentBench& operator=(const ExperimentBench&) = delete;

  std::string answer(const std::string& line);  // of a worker: a trial that was run, or that somebody else has

 private:
  Experiment& experiment_;
  lab::LoadedModel& loaded_;
  ExperimentProgress progress_;
  Snapshot start_;
};

struct ExperimentRun {
  std::filesystem::path folder;        // of the executor's tasks
  std::vector<std::string> arguments;  // of this program, for a worker of this experiment
  bool travels = false;                // the folder of the experiment is on no other machine
  std::function<void()> on_done;       // after each trial
};

// What is missing of that part, but what other processes are running.
trials::RunnerEnd run_experiment(trials::Executor& executor, Experiment& experiment, const CampaignPart& part,
                                 const ExperimentRun& options);

// A worker on a cluster, at its end: the run directory of the folder's one trial under a name that is known before it
// has run.
void offer_run(const std::filesystem::path& folder);

}  // namespace faultline::experiment
