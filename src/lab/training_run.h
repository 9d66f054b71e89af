// A training run with everything around it: faults with their proof, noise on the norms with its measure, validation
// clean and under the faults. One recipe describes it; `faultline train` runs one, an experiment many.
#pragma once

#include <optional>

#include "aqn/norm_noise.h"
#include "lab/injection.h"
#include "lab/loaded_model.h"
#include "task/task.h"
#include "train/trainer.h"

namespace faultline::lab {

struct TrainingSpec {
  task::TaskSpec task;
  train::TrainRecipe train;
  std::optional<aqn::AqnSpec> aqn;
  recipe::PlanSpec plan;  // the faults, over the steps of the last stage
  uint64_t seed = 0;
};
TrainingSpec read_training(const Node& recipe);  // validated

struct TrainingOutcome {
  Json results = Json::object();          // the last validation
  std::optional<Injection::Proof> proof;  // where there were faults; of this process's part
  Json evidence = Json::object();         // of all parts: {"faults": counts by rule and phase, "aqn": …}
  std::vector<Complaint> complaints;      // empty: everything promised happened
  std::vector<std::string> log;           // lines that people look for
  double noise_seconds = 0;               // spent on making noisy norms
};

struct TrainingProgress {
  std::function<void(const Json& event)> on_event;
  std::function<void(const std::string& line)> on_line;
};

// After a run: its model as a Hugging Face folder in the run's own, adapters merged. One that is there already stays.
std::filesystem::path save_model(LoadedModel& loaded, const record::RunDirectory& directory);

class TrainingRun {
 public:
  // Checks everything that can be refused before the first step, and makes the plan.
  TrainingRun(LoadedModel& loaded, TrainingSpec spec, train::Replicas replicas = {});
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  Json prediction() const;  // memory, sequences, tokens, matched sites
  TrainingOutcome run(record::RunDirectory& directory, const TrainingProgress& progress);
  Json evidence() const;                                 // so far; also of a run that died
  void save_start(const std::filesystem::path& folder);  // after run(): the weights, for other runs to start from

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace faultline::lab
