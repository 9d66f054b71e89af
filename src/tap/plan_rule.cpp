#include "tap/plan_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "tap/operators.h"

namespace faultline::tap {
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

bool names_place(const std::string& pattern, const site::Place& place) {
  return pattern == place.role || glob_matches(pattern, place.path) || glob_matches("*." + pattern, place.path);
}

PhaseSet read_phases(const Node& rule_phases, const Node& recipe_phases) {
  PhaseSet set;
  for (const site::Phase on : {site::Phase::kRollout, site::Phase::kActorForward, site::Phase::kActorBackward,
                               site::Phase::kEval, site::Phase::kDiagnose})
    set.set(static_cast<std::size_t>(on));
  for (const Node* phases : {&recipe_phases, &rule_phases}) {
    if (!phases->is_map()) continue;
    for (const auto& entry : phases->entries()) {
      const auto phase = site::phase_by_name(entry.key);
      if (!phase) continue;  // race: not a phase of a model
      set.set(static_cast<std::size_t>(*phase),
              entry.value.is_boolean() ? entry.value.as_bool() : entry.value.as_string() != "clean");
    }
  }
  set.set(static_cast<std::size_t>(site::Phase::kRecompute),
          set.test(static_cast<std::size_t>(site::Phase::kActorForward)));
  return set;
}

void check_plan_rule(const PlanRule& entry) {
  const numeric::Rule& read = entry.rule;
  if (!read.where) throw UsageError(fmt::format("rule '{}' does not say where", read.name));
  if (read.reevaluate && read.lifetime.kind == numeric::Lifetime::kTransient)
    throw UsageError(fmt::format(
        "rule '{}': reevaluate passes twice in every call; its lifetime must be permanent or a window", read.name));
  const bool of_operator = !read.where->operator_pattern.empty();
  const bool of_parameters = site::is_of_parameters(read.where->surface);
  const std::string_view surface = site::surface_name(read.where->surface);
  if (read.reevaluate && (read.where->surface == site::Surface::kGradient || of_parameters ||
                          (of_operator && read.where->surface == site::Surface::kInput)))
    throw UsageError(
        fmt::format("rule '{}': reevaluate is for what an operator or a module gives, or a module takes", read.name));
  if (entry.phases.none()) throw UsageError(fmt::format("rule '{}' acts in no phase", read.name));
  if (numeric::is_replacement(read.what.kind) && (!of_operator || read.where->surface != site::Surface::kOutput))
    throw UsageError(
        fmt::format("rule '{}': {} replaces what an operator computes; give where.operator and surface output",
                    read.name, numeric::kind_name(read.what.kind)));
  if (read.where->surface == site::Surface::kGradient && of_operator)
    throw UsageError(
        fmt::format("rule '{}': an operator has no gradient surface; its backward operators are reached by "
                    "surface output in phase actor_backward, or name a module",
                    read.name));
  if (names_cache(*read.where) && read.where->surface != site::Surface::kInput)
    throw UsageError(fmt::format("rule '{}': what a cache is given is its input; leave surface out", read.name));
  if (of_parameters && !read.where->module_pattern.empty())
    throw UsageError(fmt::format(
        "rule '{}': surface {} belongs to an operator rule (operator: matmul); narrow it by layer or except", read.name,
        surface));
  if (of_parameters && read.gradient == numeric::GradientRule::kMasked)
    throw UsageError(fmt::format(
        "rule '{}': gradient masked has no meaning for a {}, whose gradient goes to the master", read.name, surface));
  if (of_parameters && read.what.kind != numeric::FaultKind::kQuantize &&
      read.lifetime.kind != numeric::Lifetime::kPermanent && read.lifetime != numeric::kAsleep)
    throw UsageError(
        fmt::format("rule '{}': a {} is faulted once and kept; lifetime must be permanent", read.name, surface));
  if (of_parameters && read.when)
    throw UsageError(
        fmt::format("rule '{}': a {} is faulted once and kept, whatever reads it; leave when out, or choose among "
                    "products by surface output",
                    read.name, surface));
  if (read.when && read.gradient == numeric::GradientRule::kMasked)
    throw UsageError(
        fmt::format("rule '{}': gradient masked is for faults that act in every call; leave when out", read.name));
}

bool names_cache(const site::Selector& where) { return where.module_pattern.ends_with("_cache"); }

bool rule_means_module(const site::Selector& where, const site::Place& place) {
  const std::string& pattern = where.module_pattern;
  if (pattern == "layer_output" || pattern == "layer_input") return place.role == "layer";
  if (pattern == "norm") return place.role == "rmsnorm";
  // No module of the model: a glob over modules does not mean it.
  if (site::is_cache(place)) return pattern == "kv_cache" || (names_cache(where) && names_place(pattern, place));
  return names_place(pattern, place);
}

bool rule_means_layer(const site::Selector& where, const site::Place& place) {
  if (where.layers.empty()) return true;
  return std::any_of(where.layers.begin(), where.layers.end(), [&](const site::LayerRange& range) {
    return place.layer >= range.first && place.layer <= range.last;
  });
}

bool is_excepted(const site::Selector& where, const site::Place& place) {
  return std::any_of(where.except.begin(), where.except.end(), [&](const std::string& text) {
    return is_layer_text(text) ? layer_text_holds(text, place.layer) : names_place(text, place);
  });
}

std::string why_unreached(const PlanRule& rule, const site::Location& location, site::Surface surface) {
  if (!rule.phases.test(static_cast<std::size_t>(location.phase)))
    return fmt::format("phase {} is off", site::phase_name(location.phase));
  if (surface == site::Surface::kInput && location.phase == site::Phase::kActorBackward)
    return "inputs are faulted going forward; backward uses the saved ones";
  const site::Selector& where = *rule.rule.where;
  const site::Place& place = site::place_of(location.place);
  if (!where.layers.empty() && location.place == site::kNowhere) return "its layer is not known";
  if (!rule_means_layer(where, place)) return "not one of the rule's layers";
  if (is_excepted(where, place)) return "excepted by the rule";
  if (!leaves_out(rule, place)) return "";
  return fmt::format("{} is faulted only by a rule that names it (module: {})",
                     place.role == "router" ? "a router" : "an adapter", place.role);
}

bool leaves_out(const PlanRule& rule, const site::Place& place) {
  return (place.role == "router" || place.role == "lora") && rule.rule.where->module_pattern != place.role;
}

}  // namespace faultline::tap
