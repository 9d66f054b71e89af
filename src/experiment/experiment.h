// An experiment: arms (a recipe with a few changes each) times seeds, every trial a training run, all trials in one
// campaign store. A trial is there with its evidence or not at all, so an experiment may be stopped anywhere and goes
// on where it was, also on another machine. Within a seed the arms share prompts and their order, sampling keys and
// test problems; the seed is the unit of every comparison.
#pragma once

#include <filesystem>

#include "experiment/training_run.h"
#include "record/campaign_store.h"

namespace faultline {

struct Arm {
  std::string name;
  std::vector<std::string> overrides;  // "++aqn.schedule=…", "~faults"
};

struct ExperimentSpec {
  std::vector<Arm> arms;
  int64_t seeds = 3;
  std::string control;  // the arm that others are compared with
  std::string
      endpoint;  // a metric of the last validation, one for all arms; "": accuracy under the fault where any has it
  std::string question;
};

void register_experiment_section();  // of the recipe's schema; once
ExperimentSpec read_experiment(const Node& experiment);
// The arm's recipe for one seed, validated anew; without the section experiment.
Node arm_recipe(const Node& recipe, const Arm& arm, int64_t seed_index);

struct ExperimentProgress {
  std::function<void(const TrialKey&)> on_trial;    // before each
  std::function<void(const Json& event)> on_event;  // of the training
  std::function<void(const std::string&)> on_line;
};
// Runs what is missing. All arms are validated before the first trial.
void run_experiment(LoadedModel& loaded, const Node& recipe, const ExperimentSpec& spec, CampaignStore& store,
                    const std::filesystem::path& runs, const ExperimentProgress& progress);

// Means, paired differences from the control with intervals, exact sign-flip tests under Holm, the smallest difference
// that n seeds resolve, survival, roughness of the reward's curve, seconds a step. Of the trials that are there.
Json analyse(const ExperimentSpec& spec, CampaignStore& store);

}  // namespace faultline
