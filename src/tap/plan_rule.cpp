#include "tap/plan_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "tap/operators.h"

namespace faultline {
namespace {

bool is_layer_text(const std::string& text) { return text.find_first_not_of("0123456789-") == std::string::npos; }

bool layer_text_holds(const std::string& text, int64_t layer) {
  int64_t first = -1, last = -1;
  const std::size_t dash = text.find('-');
  std::from_chars(text.data(), text.data() + std::min(dash, text.size()), first);
  last = first;
  if (dash != std::string::npos) std::from_chars(text.data() + dash + 1, text.data() + text.size(), last);
  return layer >= first && layer <= last;
}

}  // namespace

bool names_place(const std::string& pattern, const Place& place) {
  return pattern == place.role || glob_matches(pattern, place.path) || glob_matches("*." + pattern, place.path);
}

PhaseSet read_phases(const Node& rule_phases, const Node& recipe_phases) {
  PhaseSet set;
  for (const Phase on : {Phase::kRollout, Phase::kActorForward, Phase::kActorBackward, Phase::kEval, Phase::kDiagnose})
    set.set(static_cast<std::size_t>(on));
  for (const Node* phases : {&recipe_phases, &rule_phases}) {
    if (!phases->is_map()) continue;
    for (const auto& entry : phases->entries()) {
      const auto phase = phase_by_name(entry.key);
      if (!phase) continue;  // race: not a phase of a model
      set.set(static_cast<std::size_t>(*phase),
              entry.value.is_boolean() ? entry.value.as_bool() : entry.value.as_string() != "clean");
    }
  }
  set.set(static_cast<std::size_t>(Phase::kRecompute), set.test(static_cast<std::size_t>(Phase::kActorForward)));
  return set;
}

void check_plan_rule(const PlanRule& entry) {
  const Rule& read = entry.rule;
  if (!read.where) throw UsageError(fmt::format("rule '{}' does not say where", read.name));
  if (read.reevaluate && read.lifetime.kind == Lifetime::kTransient)
    throw UsageError(fmt::format(
        "rule '{}': reevaluate passes twice in every call; its lifetime must be permanent or a window", read.name));
  const bool of_operator = !read.where->operator_pattern.empty();
  if (read.reevaluate && (read.where->surface == Surface::kGradient || read.where->surface == Surface::kWeight ||
                          (of_operator && read.where->surface == Surface::kInput)))
    throw UsageError(
        fmt::format("rule '{}': reevaluate is for what an operator or a module gives, or a module takes", read.name));
  if (entry.phases.none()) throw UsageError(fmt::format("rule '{}' acts in no phase", read.name));
  if (is_replacement(read.what.kind) && (!of_operator || read.where->surface != Surface::kOutput))
    throw UsageError(
        fmt::format("rule '{}': {} replaces what an operator computes; give where.operator and surface output",
                    read.name, kind_name(read.what.kind)));
  if (read.where->surface == Surface::kGradient && of_operator)
    throw UsageError(
        fmt::format("rule '{}': an operator has no gradient surface; its backward operators are reached by "
                    "surface output in phase actor_backward, or name a module",
                    read.name));
  if (read.where->surface == Surface::kWeight && !read.where->module_pattern.empty())
    throw UsageError(
        fmt::format("rule '{}': surface weight belongs to an operator rule (operator: matmul); narrow it by "
                    "layer or except",
                    read.name));
  if (read.where->surface == Surface::kWeight && read.gradient == GradientRule::kMasked)
    throw UsageError(fmt::format(
        "rule '{}': gradient masked has no meaning for a weight, whose gradient goes to the master", read.name));
  if (read.where->surface == Surface::kWeight && read.what.kind != FaultKind::kQuantize &&
      read.lifetime.kind != Lifetime::kPermanent && read.lifetime != kAsleep)
    throw UsageError(
        fmt::format("rule '{}': a weight is faulted once and kept; lifetime must be permanent", read.name));
}

bool rule_means_module(const Selector& where, const Place& place) {
  const std::string& pattern = where.module_pattern;
  if (pattern == "layer_output" || pattern == "layer_input") return place.role == "layer";
  if (pattern == "norm") return place.role == "rmsnorm";
  return names_place(pattern, place);
}

bool rule_means_layer(const Selector& where, const Place& place) {
  if (where.layers.empty()) return true;
  return std::any_of(where.layers.begin(), where.layers.end(),
                     [&](const LayerRange& range) { return place.layer >= range.first && place.layer <= range.last; });
}

std::string why_unreached(const PlanRule& rule, const Location& location, Surface surface) {
  if (!rule.phases.test(static_cast<std::size_t>(location.phase)))
    return fmt::format("phase {} is off", phase_name(location.phase));
  if (surface == Surface::kInput && location.phase == Phase::kActorBackward)
    return "inputs are faulted going forward; backward uses the saved ones";
  const Selector& where = *rule.rule.where;
  const Place& place = place_of(location.place);
  if (!where.layers.empty() && location.place == kNowhere) return "its layer is not known";
  if (!rule_means_layer(where, place)) return "not one of the rule's layers";
  for (const std::string& text : where.except) {
    if (is_layer_text(text) ? layer_text_holds(text, place.layer) : names_place(text, place))
      return "excepted by the rule";
  }
  if (place.role == "router" && where.module_pattern != "router")
    return "a router is faulted only by a rule that names it (module: router)";
  if (place.role == "lora" && where.module_pattern != "lora")
    return "an adapter is faulted only by a rule that names it (module: lora)";
  return "";
}

}  // namespace faultline
