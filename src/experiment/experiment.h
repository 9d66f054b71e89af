// An experiment: arms (a recipe with a few changes each) times seeds, every trial a training run, all trials in one
// campaign store. A trial is there with its evidence or not at all, so an experiment may be stopped anywhere and goes
// on where it was, also on another machine. Within a seed the arms share prompts and their order, sampling keys and
// test problems; the seed is the unit of every comparison. This file is what a recipe says about it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config/config.h"
#include "lab/evaluation.h"

namespace faultline::experiment {

struct Arm {
  std::string name;
  std::vector<std::string> overrides;                                     // "++aqn.schedule=…", "~faults"
  std::vector<std::pair<std::string, std::vector<std::string>>> by_seed;  // path, values that seeds take in turn
};

struct Contrast {  // named before the run; all of them together are the family of Holm's correction
  std::string name, arm, against;
};

// How strong a fault has to be so that it alone leaves a share of the clean model's answers.
struct Calibration {
  std::string rule, parameter;
  double low = 0, high = 1;  // the parameter is looked for between them
  double leave_low = 0.5, leave_high = 0.75;
  int64_t problems = 256, trials = 12;
  bool agreement = false;  // of answers with the clean ones, in place of accuracy: for models that are never right
};

struct ExperimentSpec {
  std::vector<Arm> arms;
  int64_t seeds = 3, pilot = 6;
  std::string control;   // the arm that others are compared with
  std::string endpoint;  // a metric of the end, one for all arms; "": accuracy under the fault where any has it
  std::string question;
  std::vector<Contrast> contrasts;
  std::vector<lab::FaultCase> evaluations;  // faults that every arm's final model is judged under
  int64_t draws = 1;                        // of their noise
  std::optional<Calibration> calibration;
  std::string diagnosis;  // method whose verdict arms may read (from_verdict: verdict.json); "": none

  const Arm& arm(const std::string& name) const;  // UsageError with the nearest name
};

void register_experiment_section();  // of the recipe's schema; once
ExperimentSpec read_experiment(const Node& experiment);

// What a scale (tiny, short, default, paper) changes in a recipe: what is built in, then experiment.scales of the
// recipe.
std::vector<std::string> scale_overrides(const Node& recipe, const std::string& scale);

inline constexpr int64_t kPilotSeeds = 1'000'000;  // a pilot's seeds lie so far behind those of the experiment

// The arm's recipe for one seed, validated anew; without the section experiment.
Node arm_recipe(const Node& recipe, const Arm& arm, int64_t seed_index);

}  // namespace faultline::experiment
