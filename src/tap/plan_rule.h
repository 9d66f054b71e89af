// A rule inside a plan: in which phases it acts, what a plan refuses of it, and which places it means.
#pragma once

#include <bitset>
#include <string>

#include "numeric/rule.h"
#include "site/boundary.h"

namespace faultline::tap {

using PhaseSet = std::bitset<site::kPhases>;
// `phases:` of a rule, or of the recipe where the rule says nothing, or the default: rollout, actor forward and
// backward, eval and diagnose. A recomputation is faulted where the actor's forward is.
PhaseSet read_phases(const Node& rule_phases, const Node& recipe_phases);

struct PlanRule {
  numeric::Rule rule;
  std::optional<numeric::Rule> asleep;  // the same rule where its `when` does not hold: counted, and changing nothing
  PhaseSet phases;
  uint32_t index = 0;
  const PlanRule* repeats = nullptr;  // reevaluate: the dead zone whose second pass this is
};

void check_plan_rule(const PlanRule& rule);  // throws UsageError where a plan cannot do what it says

bool names_place(const std::string& pattern, const site::Place& place);  // a role, or a glob of the path's end
bool names_cache(const site::Selector& where);  // module: kv_cache, k_cache, or a path that ends so
// Whether `where.module` or `where.layer`, `except` mean this place.
bool rule_means_module(const site::Selector& where, const site::Place& place);
bool rule_means_layer(const site::Selector& where, const site::Place& place);
bool is_excepted(const site::Selector& where, const site::Place& place);
// Why a rule does not act there; "": it does.
std::string why_unreached(const PlanRule& rule, const site::Location& location, site::Surface surface);
// Routers and adapters, which only a rule that names them reaches.
bool leaves_out(const PlanRule& rule, const site::Place& place);

}  // namespace faultline::tap
