#include "recipe/recipe.h"

namespace faultline::recipe {
namespace {

Node section_or_null(const Node& recipe, std::string_view name) {
  const Node* section = recipe.find(name);
  return section != nullptr ? *section : Node();
}

std::vector<std::string> names_in(const Node* list) {
  std::vector<std::string> names;
  if (list == nullptr) return names;
  for (const Node& name : list->items()) names.push_back(name.as_string());
  return names;
}

}  // namespace

PlanSettings::PlanSettings(const Node& recipe, int64_t steps, int64_t layers)
    : seed(static_cast<uint64_t>(recipe.at("seed").as_integer())),
      phases(section_or_null(recipe, "phases")),
      allow_partial(names_in(recipe.find("allow_partial"))),
      operators(section_or_null(recipe, "operators")),
      total_steps(steps),
      layer_count(layers) {}

PlanSettings::PlanSettings(const PlanSettings& from, int64_t layers)
    : seed(from.seed),
      phases(from.phases),
      allow_partial(from.allow_partial),
      operators(from.operators),
      total_steps(from.total_steps),
      layer_count(layers) {}

PlanSettings PlanSettings::on_layers(int64_t layers) const { return {*this, layers}; }

PlanSpec read_plan_spec(const Node& recipe, int64_t total_steps, int64_t layer_count) {
  PlanSpec spec{{}, PlanSettings(recipe, total_steps, layer_count)};
  if (const Node* faults = recipe.find("faults"))
    for (const Node& rule : faults->items()) spec.rules.push_back(numeric::read_rule(rule));
  return spec;
}

Node recipe_of_rules(const std::vector<numeric::Rule>& rules, uint64_t seed) {
  Node recipe = Node::map(), faults = Node::list();
  for (const numeric::Rule& rule : rules) faults.push_back(rule.source);
  recipe.set("seed", static_cast<int64_t>(seed));
  recipe.set("faults", std::move(faults));
  return recipe;
}

}  // namespace faultline::recipe
