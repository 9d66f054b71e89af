#include "plugin/recipe_sections.h"

#include <mutex>

#include "diagnose/campaign/campaign.h"
#include "experiment/experiment.h"
#include "lab/evaluation.h"
#include "tap/operator_table.h"
#include "triage/plan.h"

namespace faultline::plugin {
namespace {

void register_once() {
  recipe::register_plan_sections();
  tap::register_operators_section();
  lab::register_lab_sections();
  experiment::register_experiment_section();
  triage::register_triage_sections();
  diagnose::register_diagnose_section();
}

}  // namespace

void register_recipe_sections() {
  static std::once_flag once;
  std::call_once(once, register_once);
}

Node read_clients_recipe(const std::string& recipe, c10::ArrayRef<std::string> overrides) {
  register_recipe_sections();
  const bool is_text = recipe.find_first_of("\n{") != std::string::npos;
  return is_text ? recipe::parse_recipe(recipe, overrides) : recipe::load_recipe(recipe, overrides);
}

}  // namespace faultline::plugin
