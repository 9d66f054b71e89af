// What a plan needs of a recipe: its rules and its settings. One function reads them for every command and every
// client, and settings cannot be made or changed in any other way: a place that filled them in by hand forgot the
// phases, and a run then injected what its dry run had refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "numeric/rule.h"

namespace faultline {

struct PlanSpec;

struct PlanSettings {
  const uint64_t seed;
  const Node phases;                             // the recipe's, or null
  const std::vector<std::string> allow_partial;  // globs of module paths, or roles
  const int64_t total_steps;                     // for schedules
  const int64_t layer_count;                     // for per-layer schedules; 0: not known

  PlanSettings on_layers(int64_t layers) const;  // the same on a model that has so many

 private:
  PlanSettings(const Node& recipe, int64_t steps, int64_t layers);
  PlanSettings(const PlanSettings& from, int64_t layers);
  friend PlanSpec read_plan_spec(const Node& recipe, int64_t total_steps, int64_t layer_count);
};

struct PlanSpec {
  std::vector<Rule> rules;  // in the order of the plan; empty where a recipe has no faults
  PlanSettings settings;
};

// recipe: validated, or made by recipe_of_rules. How long the run is and how deep the model, a recipe does not say.
PlanSpec read_plan_spec(const Node& recipe, int64_t total_steps = 1, int64_t layer_count = 0);

// The recipe that is nothing but these rules: what --fault means. Any seed: read_plan_spec gives back its 64 bits.
Node recipe_of_rules(const std::vector<Rule>& rules, uint64_t seed);

Schema allow_partial_schema();

}  // namespace faultline
