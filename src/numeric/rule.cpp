#include "numeric/rule.h"

#include <fmt/format.h>

#include <set>

#include "base/schedule/schedule.h"

namespace faultline::numeric {
namespace {

Schema lifetime_schema() {
  const Schema probability = Schema::number({.min = 0, .max = 1, .exclusive_min = true});
  const Schema step = Schema::integer({.min = 0, .max = int64_t{4294967295}});
  return Schema::tagged(
      "kind", {{"permanent", Schema::map()},
               {"transient", Schema::map().field("probability", probability, {.required = true, .doc = "per call"})},
               {"window", Schema::map()
                              .field("from", step, {.required = true, .doc = "first step"})
                              .field("to", step, {.required = true, .doc = "step after the last"})
                              .check([](const Node& window) {
                                return window.at("from").as_integer() < window.at("to").as_integer()
                                           ? std::string()
                                           : std::string("the window is empty: from must be before to");
                              })}});
}

std::string check_rule(const Node& rule) {
  const Node& what = rule.at("what");
  const std::string& kind = what.at("kind").as_string();
  const bool partial = read_extent(rule.at("extent")).is_partial();
  if (kind == "swap" && partial) return "what.kind swap exchanges regions of the whole tensor; leave extent out";
  if (kind == "bitflip" && what.find("count") && partial)
    return "bitflip with count picks its own elements; use rate together with an extent";
  if (kind == "quantize" && rule.at("rounding").as_string() == "stochastic")
    return "quantize rounds by what.rounding; leave rounding at nearest";
  const bool masked_kind = kind == "deadzone" || kind == "saturate" || kind == "zero";
  if (rule.at("gradient").as_string() == "masked" && !masked_kind) {
    return fmt::format("gradient: masked is for faults that force a constant (deadzone, saturate, zero), not for {}",
                       kind);
  }
  static const std::set<std::string> kDrawn = {
      "relative_gaussian", "absolute_gaussian", "scaled_gaussian", "nondeterministic", "spike", "profile"};
  const bool random = kDrawn.contains(kind) || (kind == "truncate" && what.at("mode").as_string() == "stochastic") ||
                      rule.at("rounding").as_string() == "stochastic";
  if (rule.at("keyed_by").as_string() == "row" && !random)
    return fmt::format("keyed_by: row is for faults that draw a number for each element, not for {}", kind);
  static const std::set<std::string> kBits = {"bitflip", "stuck_at",   "zero",        "nan",  "inf",
                                              "swap",    "accumulate", "approximate", "stale"};
  if (rule.at("rounding").as_string() == "stochastic" && kBits.contains(kind))
    return fmt::format("rounding: stochastic has nothing to round in {}", kind);
  static const std::set<std::string> kUnscheduled = {"bitflip",  "truncate",   "stuck_at",    "zero",
                                                     "nan",      "inf",        "swap",        "profile",
                                                     "quantize", "accumulate", "approximate", "stale"};
  if (rule.find("schedule") && kUnscheduled.contains(kind))
    return fmt::format("{} has no strength that a schedule could change", kind);
  if (rule.at("reevaluate").as_bool() && kind != "deadzone")
    return "reevaluate repeats a dead zone after the rules behind it; it needs what.kind deadzone";
  return "";
}

}  // namespace

Schema phases_schema() {
  const Schema flag = Schema::boolean();
  Schema phases = Schema::map();
  for (const char* phase : {"rollout", "actor_forward", "actor_backward", "ref", "critic", "diagnose", "race"})
    phases = phases.field(phase, flag);
  return phases.field("eval", Schema::choice({"clean", "faulty", "both"}));
}

Schema rule_schema(RuleUse use) {
  Schema rule = Schema::map().field("name", Schema::string({.min = 1, .max = 100}),
                                    {.required = true, .doc = "unique; part of the random identity"});
  if (use == RuleUse::kInPlan)
    rule = rule.field("where", site::selector_schema(), {.required = true, .doc = "which sites"});
  Node extent = Node::map(), lifetime = Node::map();
  extent.set("fraction", 1.0);
  lifetime.set("kind", "permanent");
  const auto refuse_when = [](const Node&) {
    return std::string("a single tensor has no calls to choose among: when belongs to a rule of a plan");
  };
  const Schema when = use == RuleUse::kInPlan ? site::condition_schema() : Schema::anything().check(refuse_when);
  return rule.field("what", fault_schema(), {.required = true, .doc = "the fault and its parameters"})
      .field("extent", extent_schema(), {.default_value = extent, .doc = "which elements it may touch"})
      .field("lifetime", lifetime_schema(), {.default_value = lifetime, .doc = "when it acts"})
      .field("when", when, {.doc = "at which calls: by rows and columns, kind of forward, number of the decoding"})
      .field("gradient", Schema::choice({"straight_through", "masked"}),
             {.default_value = Node("straight_through"), .doc = "what backward sees of a forward fault"})
      .field("phases", phases_schema(), {.doc = "overrides the recipe's phases"})
      .field("schedule", schedule_schema(), {.doc = "strength by step"})
      .field("rounding", Schema::choice({"nearest", "stochastic"}),
             {.default_value = Node("nearest"), .doc = "final rounding to the tensor's dtype"})
      .field("expect", Schema::choice({"visible", "invisible"}),
             {.default_value = Node("visible"), .doc = "invisible: assert that not one bit changes"})
      .field("keyed_by", Schema::choice({"element", "row"}),
             {.default_value = Node("element"), .doc = "row: a sequence meets the same noise in any batch"})
      .field("reevaluate", Schema::boolean(),
             {.default_value = Node(false), .doc = "dead zone again after the later rules, with the first threshold"})
      .check(check_rule);
}

bool always_does_the_same(const Rule& rule) {
  if (rule.stochastic_rounding || rule.lifetime.kind != Lifetime::kPermanent || rule.schedule || rule.when)
    return false;
  switch (rule.what.kind) {
    case FaultKind::kGain:
    case FaultKind::kOffset:
    case FaultKind::kDeadzone:
    case FaultKind::kSaturate:
    case FaultKind::kZero: return true;
    case FaultKind::kTruncate: return static_cast<TruncateMode>(rule.what.mode) != TruncateMode::kStochastic;
    case FaultKind::kQuantize:
      return !is_stochastic(rule.what.format) &&
             (rule.what.format.stuck || rule.what.format.faulty == Encoded::kNothing);
    default: return false;
  }
}

Rule read_rule(const Node& node) {
  Rule rule;
  rule.name = node.at("name").as_string();
  if (const Node* where = node.find("where")) rule.where = site::read_selector(*where);
  rule.what = read_fault(node.at("what"));
  rule.extent = read_extent(node.at("extent"));
  const Node& lifetime = node.at("lifetime");
  if (lifetime.at("kind").as_string() == "transient") {
    rule.lifetime = {Lifetime::kTransient, lifetime.at("probability").as_number(), 0, 0};
  } else if (lifetime.at("kind").as_string() == "window") {
    rule.lifetime = {Lifetime::kWindow, 1, lifetime.at("from").as_integer(), lifetime.at("to").as_integer()};
  }
  if (const Node* when = node.find("when")) rule.when = site::read_condition(*when);
  rule.gradient = node.at("gradient").as_string() == "masked" ? GradientRule::kMasked : GradientRule::kStraightThrough;
  if (const Node* schedule = node.find("schedule")) rule.schedule = read_schedule(*schedule);
  rule.stochastic_rounding = node.at("rounding").as_string() == "stochastic";
  rule.expect_invisible = node.at("expect").as_string() == "invisible";
  rule.keyed_by_row = node.at("keyed_by").as_string() == "row";
  rule.reevaluate = node.at("reevaluate").as_bool();
  if (const Node* phases = node.find("phases")) rule.phases = *phases;
  rule.source = node;
  return rule;
}

Rule parse_rule(std::string_view text, RuleUse use) {
  const std::size_t start = text.find_first_not_of(" \t\n");
  Node node;
  if (start != std::string_view::npos && text[start] == '{') {
    node = parse_yaml(text, "fault");
    if (node.find("kind")) {
      Node rule = Node::map();
      rule.set("what", node);
      node = rule;
    }
  } else {
    node = expand_short_form(text);
    if (use == RuleUse::kInPlan && node.find("where") == nullptr)
      throw UsageError(
          fmt::format("fault '{0}': it does not say where it acts; write the place behind an @, as in '{0} @ "
                      "operator=matmul,layer=15' or '{0} @ module=down_proj'",
                      text));
  }
  if (!node.find("name") && node.find("what") && node.at("what").find("kind") &&
      node.at("what").at("kind").is_string()) {
    node.set("name", node.at("what").at("kind").as_string());
  }
  return read_rule(validate(node, rule_schema(use)));
}

}  // namespace faultline::numeric
