// A recipe: the whole file that says what is to be done. Each module owns a section of it; the sections that a plan
// needs (model, seed, phases, faults, allow_partial) are this module's, and what they say to a plan is read here, by
// one function for every command and every client. Whoever reads whole recipes registers all sections first
// (plugin/recipe_sections.h): an explicit call, because the order of global constructors across files is unspecified,
// and a section that a linker left out would be a section that nothing reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/config/schema.h"
#include "numeric/rule.h"

namespace faultline::recipe {

void register_plan_sections();  // of the recipe's schema; once

Schema recipe_schema();  // of all sections registered so far

// With overrides applied and defaults filled in; every rule has been read, so combinations that a schema cannot
// express are refused too. Throws UsageError with file:line and path.
Node read_recipe(const Node& given, std::span<const std::string> overrides);
Node load_recipe(const std::filesystem::path& path, std::span<const std::string> overrides);
Node parse_recipe(std::string_view text, std::span<const std::string> overrides);

struct PlanSpec;

// Settings cannot be made or changed in any other way than read_plan_spec: a place that filled them in by hand forgot
// the phases, and a run then injected what its dry run had refused.
struct PlanSettings {
  const uint64_t seed;
  const Node phases;                             // the recipe's, or null
  const std::vector<std::string> allow_partial;  // globs of module paths, or roles
  const Node operators;                          // a backend's own operators by family, or null; tap/ reads it
  const int64_t total_steps;                     // for schedules
  const int64_t layer_count;                     // for per-layer schedules; 0: not known

  PlanSettings on_layers(int64_t layers) const;  // the same on a model that has so many

 private:
  PlanSettings(const Node& recipe, int64_t steps, int64_t layers);
  PlanSettings(const PlanSettings& from, int64_t layers);
  friend PlanSpec read_plan_spec(const Node& recipe, int64_t total_steps, int64_t layer_count);
};

struct PlanSpec {
  std::vector<numeric::Rule> rules;  // in the order of the plan; empty where a recipe has no faults
  PlanSettings settings;
};

// recipe: validated, or made by recipe_of_rules. How long the run is and how deep the model, a recipe does not say.
PlanSpec read_plan_spec(const Node& recipe, int64_t total_steps = 1, int64_t layer_count = 0);

// The recipe that is nothing but these rules: what --fault means. Any seed: read_plan_spec gives back its 64 bits.
Node recipe_of_rules(const std::vector<numeric::Rule>& rules, uint64_t seed);

}  // namespace faultline::recipe
