// One trial of an experiment: the arm's recipe for a seed, trained to its end, judged under the faults that every arm
// is judged under, with the evidence of everything that acted. A trial that was stopped goes on from its own newest
// checkpoint; a fault or a noise that did not happen makes it an error, never a number.
#pragma once

#include <string>

#include "experiment/experiment.h"
#include "lab/training_run.h"
#include "record/campaign_store.h"
#include "record/run_record.h"

namespace faultline::experiment {

struct TrialRequest {
  record::TrialKey key;
  Node recipe;              // of the arm and seed
  std::string fingerprint;  // of recipe and model, the same on every machine
  std::filesystem::path folder;
  const ExperimentSpec* experiment = nullptr;
  std::optional<std::filesystem::path> start;  // the supervised steps that the arms of this seed share
  record::Maker maker = {};                    // kept with the trial
};

record::Trial run_trial(lab::LoadedModel& loaded, const TrialRequest& request, const lab::TrainingProgress& progress);

// What the final model of this recipe's trial is judged under. The recipe's phases say when its own faults act.
recipe::PlanSpec evaluation_plan(const Node& trial_recipe, const lab::FaultCase& evaluation);

struct Snapshot {  // of the weights that every trial begins with
  std::vector<at::Tensor> values;
  explicit Snapshot(model::CausalLm& model);
  void restore(model::CausalLm& model) const;
};

// Whether a stored trial has the shape that run_trial gives it. A store may come from another machine, by --merge or by
// hand; what reads it later takes fields for granted, so it is looked at once, at the door.

std::string misshapen(const record::Trial& trial);  // a sentence, or ""

}  // namespace faultline::experiment
