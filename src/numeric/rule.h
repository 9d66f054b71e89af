// A fault rule: where, what, how much of it, when. The grammar is a map (Decided: maps, never strings to be parsed
// twice); the one short form for the command line, `kind(parameter=value, extent.fraction=0.1) @
// operator=matmul,layer=15`, expands to the same map. Later modules read the parts they own (where, phases, schedule);
// this file checks them all.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/schedule/schedule.h"
#include "numeric/extent.h"
#include "numeric/fault.h"
#include "site/condition.h"
#include "site/selector.h"

namespace faultline::numeric {

enum class GradientRule { kStraightThrough, kMasked };

struct LifetimeSpec {
  Lifetime kind = Lifetime::kPermanent;
  double probability = 1;
  int64_t from = 0;
  int64_t to = 0;

  bool operator==(const LifetimeSpec&) const = default;
};
// Armed, counted and never active: what a comparison with nothing wants. No recipe can say it.
inline constexpr LifetimeSpec kAsleep{Lifetime::kWindow, 1, 0, 0};

struct Rule {
  std::string name;
  std::optional<site::Selector> where;  // absent in rules that are applied to a tensor directly
  FaultSpec what;
  ExtentSpec extent;
  LifetimeSpec lifetime;
  std::optional<site::Condition> when;  // in plans only
  GradientRule gradient = GradientRule::kStraightThrough;
  std::optional<ScheduleSpec> schedule;
  bool stochastic_rounding = false;  // rounding: stochastic
  bool expect_invisible = false;     // expect: invisible
  bool keyed_by_row = false;         // keyed_by: row
  bool reevaluate = false;
  Node phases;  // validated map, or null: the recipe's
  Node source;  // the whole validated map, for records
};

enum class RuleUse { kInPlan, kOnTensor };  // a plan's rule must say where

Schema rule_schema(RuleUse use);
Schema phases_schema();
Rule read_rule(const Node& rule);  // validated by rule_schema

// Whether it does the same to the same numbers every time: it draws nothing, and neither the step nor what came before
// matters. Where this is not certain, false.
bool always_does_the_same(const Rule& rule);

// The short form -> the same map, not yet validated. Positions say "command line".
Node expand_short_form(std::string_view text);

// Short form, or a YAML/JSON flow map that is a rule or just its `what`; validated and read.
Rule parse_rule(std::string_view text, RuleUse use);

}  // namespace faultline::numeric
