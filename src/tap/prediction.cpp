#include "tap/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/json.h"
#include "base/text.h"
#include "tap/boundary.h"
#include "tap/counts.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"

namespace faultline::tap {
namespace {

constexpr const char* kNotNamed = "no rule names it";

// "": the rule acts there.
std::string why_not(const PlanRule& rule, const std::set<std::string>& operators, const CensusEntry& entry) {
  const auto boundary = boundary_of(entry);
  const bool named =
      boundary ? rule_means_boundary(rule, site::place_of(entry.place), *boundary) : operators.contains(entry.name);
  if (!named) return kNotNamed;
  const site::Surface surface = rule.rule.where->surface;
  if (surface != site::Surface::kGradient) return why_unreached(rule, {entry.place, entry.phase}, surface);
  if (entry.phase != site::Phase::kActorForward)
    return fmt::format("nothing goes backward in {}", site::phase_name(entry.phase));
  return why_unreached(rule, {entry.place, site::Phase::kActorBackward}, surface);
}

std::vector<std::set<std::string>> operators_of_rules(const Plan& plan) {
  std::vector<std::set<std::string>> names;
  for (const auto& rule : plan.rules()) {
    const auto found = operators_of(*rule);
    names.emplace_back(found.begin(), found.end());
  }
  return names;
}

}  // namespace

std::string reasons_text(const std::map<std::string, int64_t>& calls_by_reason) {
  std::string text;
  for (const auto& [reason, calls] : calls_by_reason)
    text += fmt::format("{}{} calls: {}", text.empty() ? "" : "; ", calls, reason);
  return text;
}

std::vector<Prediction> predict(const Plan& plan, const Census& census) {
  const auto operators = operators_of_rules(plan);
  std::vector<Prediction> predictions;
  for (const auto& rule : plan.rules()) {
    Prediction prediction{rule.get(), 0, {}, {}, {}};
    for (const CensusEntry& entry : census) {
      std::string reason = why_not(*rule, operators[rule->index], entry);
      if (reason.empty() && entry.forwards == kOutsideOfForwards) reason = "outside of any forward";
      if (!reason.empty()) {
        prediction.unreached[reason] += entry.calls;
        continue;
      }
      prediction.sites += 1;
      if (entry.scoring) continue;  // of the others are the calls a forward
      const auto phase = static_cast<std::size_t>(entry.phase);
      const bool writes = rule->rule.where->surface == site::Surface::kOutput && !boundary_of(entry);
      const int64_t calls = writes ? entry.writes : entry.calls;
      if (entry.routed > 0)
        prediction.routed_calls[phase] = std::max(prediction.routed_calls[phase], calls / entry.routed);
      else
        prediction.calls[phase] += calls / std::max<int64_t>(1, entry.forwards);
    }
    predictions.push_back(prediction);
  }
  return predictions;
}

void check_reached(const Plan& plan, const Censuses& censuses) {
  std::vector<Prediction> all(plan.rules().size());
  std::set<std::string> ran;
  for (const auto& [kind, census] : censuses) {
    for (const CensusEntry& entry : census) {
      if (!boundary_of(entry)) ran.insert(std::string(base_name(entry.name)));
    }
    for (const Prediction& prediction : predict(plan, census)) {
      Prediction& sum = all[prediction.rule->index];
      sum.sites += prediction.sites;
      for (const auto& [reason, calls] : prediction.unreached) sum.unreached[reason] += calls;
    }
  }
  for (const auto& rule : plan.rules()) {
    const std::string& pattern = rule->rule.where->operator_pattern;
    Prediction& sum = all[rule->index];
    if (sum.sites > 0) continue;
    const auto unnamed = sum.unreached.extract(kNotNamed);
    if (!sum.unreached.empty())
      throw UsageError(fmt::format(
          "rule '{}': {} '{}' acts nowhere in what ran ({})", rule->rule.name, pattern.empty() ? "module" : "operator",
          pattern.empty() ? rule->rule.where->module_pattern : pattern, reasons_text(sum.unreached)));
    if (pattern.empty()) continue;  // its names are checked by check_modules; not every client's census has boundaries
    throw UsageError(fmt::format("rule '{}': operator '{}' matches nothing that ran ({}){}", rule->rule.name, pattern,
                                 unnamed.empty() ? "nothing ran" : reasons_text({{unnamed.key(), unnamed.mapped()}}),
                                 did_you_mean(pattern, std::vector<std::string>(ran.begin(), ran.end()))));
  }
}

std::map<site::Phase, std::map<std::string, int64_t>> unknown_operators(const Census& census) {
  std::map<site::Phase, std::map<std::string, int64_t>> calls;
  for (const CensusEntry& entry : census) {
    if (!boundary_of(entry) && entry.writes > 0 && is_unknown_operator(base_name(entry.name)))
      calls[entry.phase][entry.name] += entry.calls;
  }
  return calls;
}

Json coverage(const Plan& plan, const Census& census) {
  const auto operators = operators_of_rules(plan);
  struct Sums {
    double calls = 0, flops = 0, bytes = 0;
  };
  std::map<site::Phase, std::pair<Sums, Sums>> phases;  // all, reached
  std::map<std::tuple<site::Phase, std::string, std::string>, int64_t> missed;
  for (const CensusEntry& entry : census) {
    if (boundary_of(entry)) continue;
    std::string reason = kNotNamed;
    for (const auto& rule : plan.rules()) {
      const std::string why = why_not(*rule, operators[rule->index], entry);
      if (why != kNotNamed) reason = why;
      if (why.empty()) break;
    }
    auto& [all, reached] = phases[entry.phase];
    for (Sums* sums : {&all, reason.empty() ? &reached : nullptr}) {
      if (sums == nullptr) continue;
      sums->calls += static_cast<double>(entry.calls), sums->flops += entry.flops, sums->bytes += entry.bytes;
    }
    if (!reason.empty()) missed[{entry.phase, entry.name, reason}] += entry.calls;
  }
  Json json = Json::object();
  for (const auto& [phase, sums] : phases) {
    const auto& [all, reached] = sums;
    auto not_reached = Json::array();
    for (const auto& [key, calls] : missed) {
      if (std::get<0>(key) == phase)
        not_reached.push_back({{"operator", std::get<1>(key)}, {"calls", calls}, {"why", std::get<2>(key)}});
    }
    json[std::string(site::phase_name(phase))] = {{"operators", all.calls},
                                                  {"reached", reached.calls},
                                                  {"flops_share", all.flops > 0 ? reached.flops / all.flops : 0},
                                                  {"bytes_share", all.bytes > 0 ? reached.bytes / all.bytes : 0},
                                                  {"not_reached", not_reached}};
  }
  for (const auto& [phase, calls] : unknown_operators(census))
    json[std::string(site::phase_name(phase))]["unknown"] = calls;
  return json;
}

}  // namespace faultline::tap
