#include "recipe/recipe.h"

#include <fmt/format.h>

#include <mutex>
#include <set>

#include "aqn/aqn_schema.h"
#include "base/override.h"
#include "diagnose/diagnose_schema.h"
#include "experiment/experiment.h"
#include "lab/evaluation_schema.h"
#include "race/config.h"
#include "tap/plan_settings.h"
#include "task/task.h"
#include "train/train_schema.h"
#include "triage/plan.h"

namespace faultline {
namespace {

// A rule's name is part of its random identity: two rules of one name would draw the same numbers.
std::string check_names(const Node& faults) {
  std::set<std::string> seen;
  for (const Node& rule : faults.items()) {
    const std::string& name = rule.at("name").as_string();
    if (!seen.insert(name).second) return fmt::format("two rules are named '{}'; names must differ", name);
  }
  return "";
}

void register_once() {
  SectionRegistry& registry = SectionRegistry::global();
  registry.add("model", Schema::string({.min = 1}),
               {.default_value = Node("default"), .doc = "a folder, a .gguf file, or default"});
  registry.add("seed", Schema::integer({.min = 0}),
               {.default_value = Node(0), .doc = "every random number follows from it"});
  registry.add("phases", phases_schema(), {.doc = "in which phases the faults act"});
  registry.add("faults", Schema::list(rule_schema(RuleUse::kInPlan)).check(check_names),
               {.default_value = Node::list(), .doc = "the rules, in the order in which they apply at a site"});
  // Without a default: a recipe that does not name it is, to the hash, the recipe that it was.
  registry.add("allow_partial", allow_partial_schema(),
               {.doc = "sites that may stay silent or half-faulted; the report says so first"});
  register_task_section();
  register_evaluate_section();
  register_train_section();
  register_aqn_section();
  register_experiment_section();
  registry.add("race", race::config_schema(), {.doc = "known bytes through collectives; `faultline race`"});
  registry.add("triage", triage::recipe_schema(), {.doc = "a matrix of mitigations; `faultline triage run`"});
  register_diagnose_section();
}

Node checked(const Node& given, std::span<const std::string> overrides) {
  const Schema schema = recipe_schema();
  const Node recipe = validate(apply_overrides(given, overrides, &schema), schema);
  (void)read_plan_spec(recipe);
  return recipe;
}

}  // namespace

void register_recipe_sections() {
  static std::once_flag once;
  std::call_once(once, register_once);
}

Schema recipe_schema() {
  register_recipe_sections();
  return SectionRegistry::global().recipe_schema();
}

Node load_recipe(const std::filesystem::path& path, std::span<const std::string> overrides) {
  return checked(load_config(path), overrides);
}
Node parse_recipe(std::string_view text, std::span<const std::string> overrides) {
  return checked(parse_yaml(text, "recipe"), overrides);
}

}  // namespace faultline
