// One trial of an experiment: the arm's recipe for a seed, trained to its end, judged under the faults that every arm
// is judged under, with the evidence of everything that acted. A trial that was stopped goes on from its own newest
// checkpoint; a fault or a noise that did not happen makes it an error, never a number.
#pragma once

#include "experiment/experiment.h"
#include "experiment/training_run.h"
#include "record/campaign_store.h"

namespace faultline {

struct TrialRequest {
  TrialKey key;
  Node recipe;              // of the arm and seed
  std::string fingerprint;  // of recipe and model, the same on every machine
  std::filesystem::path folder;
  const ExperimentSpec* experiment = nullptr;
  std::optional<std::filesystem::path> start;  // the supervised steps that the arms of this seed share
  Json versions = {};                          // of the program, kept with the trial
};

Trial run_trial(LoadedModel& loaded, const TrialRequest& request, const TrainingProgress& progress);

// What the final model of this recipe's trial is judged under. The recipe's phases say when its own faults act.
PlanSpec evaluation_plan(const Node& trial_recipe, const FaultCase& evaluation);

struct Snapshot {  // of the weights that every trial begins with
  std::vector<at::Tensor> values;
  explicit Snapshot(CausalLm& model);
  void restore(CausalLm& model) const;
};

}  // namespace faultline
