// Fuzzes what people write and share: a whole recipe with every section's real schema, a rule in its short form, a plan
// of triage, another system's settings that become a recipe, overrides of a recipe. The first byte chooses. Refusing is
// fine, anything but a UsageError is a finding; what is accepted must be accepted again as it is written out, and mean
// the same.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/config.h"
#include "base/config/override.h"
#include "base/error.h"
#include "base/fuzz_target.h"
#include "experiment/experiment.h"
#include "plugin/recipe_sections.h"
#include "recipe/convert.h"
#include "triage/plan.h"

namespace faultline::plugin {
namespace {

constexpr std::string_view kBase =
    "{seed: 1, task: {name: arithmetic}, faults: [{name: a, where: {operator: matmul}, what: {kind: zero}}], "
    "train: {algorithm: grpo, steps: 2}, experiment: {control: x, arms: {x: {}, y: {train.steps: 3}}}}";

void require(bool condition) {
  if (!condition) std::abort();
}

const Schema& schema() {
  static const Schema whole = [] {
    register_recipe_sections();
    return recipe::recipe_schema();
  }();
  return whole;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    lines.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

void check_arms(const Node& recipe) {
  try {
    const experiment::ExperimentSpec spec = experiment::read_experiment(recipe.at("experiment"));
    for (const experiment::Arm& arm : spec.arms)
      require(experiment::arm_recipe(recipe, arm, 1).find("experiment") == nullptr);
  } catch (const UsageError&) {  // an arm may change what may not be changed
  }
}

void check_recipe(const Node& given) {
  const Node recipe = validate(given, schema());
  require(recipe::read_plan_spec(recipe).rules.size() == recipe.at("faults").items().size());
  require(validate(recipe, schema()) == recipe);
  const std::string text = to_yaml(recipe);
  if (text.size() <= kMaxConfigBytes) require(validate(parse_yaml(text, "again"), schema()) == recipe);
  if (recipe.find("experiment") != nullptr) check_arms(recipe);
}

void check_rule(std::string_view text, numeric::RuleUse use) {
  const numeric::Rule rule = numeric::parse_rule(text, use);
  require(use == numeric::RuleUse::kOnTensor || rule.where.has_value());
  static const Schema schemas[] = {numeric::rule_schema(numeric::RuleUse::kInPlan),
                                   numeric::rule_schema(numeric::RuleUse::kOnTensor)};
  const Node again = validate(rule.source, schemas[use == numeric::RuleUse::kInPlan ? 0 : 1]);
  require(again == rule.source && numeric::read_rule(again).name == rule.name);
  (void)numeric::always_does_the_same(rule);
}

void check_plan(std::string_view text) {
  const triage::Plan plan = triage::read_plan(parse_yaml(text, "fuzz.yaml"), "fuzz", "/nonexistent");
  require(!plan.cells.empty() && plan.baseline < plan.cells.size() && plan.total_trials() >= 0);
  (void)triage::to_json(plan).dump();
  (void)triage::dry_run_lines(plan);
}

void check_conversion(const std::vector<recipe::ForeignSetting>& settings) {
  check_recipe(recipe::convert_settings(settings).recipe);  // the result has passed the recipe's own checks
}

void check_input(uint8_t what, std::string_view text) {
  switch (what % 7) {
    case 0: return check_recipe(parse_yaml(text, "fuzz.yaml"));
    case 1: return check_rule(text, numeric::RuleUse::kInPlan);
    case 2: return check_rule(text, numeric::RuleUse::kOnTensor);
    case 3: return check_plan(text);
    case 4: return check_conversion(recipe::settings_of_file(parse_yaml(text, "fuzz.yaml")));
    case 5: return check_conversion(recipe::settings_of_arguments(lines_of(text)));
    default: return check_recipe(apply_overrides(parse_yaml(kBase, "base"), lines_of(text), &schema()));
  }
}

}  // namespace
}  // namespace faultline::plugin

FAULTLINE_FUZZ_TARGET(recipe_fuzz)(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    faultline::plugin::check_input(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const faultline::UsageError&) {
  }
  return 0;
}
