// What a campaign's trials add up to.
#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/stats/stats.h"
#include "diagnose/campaign/campaign.h"

namespace faultline::diagnose {
namespace {

struct Counts {
  int64_t trials = 0, found = 0, layer = 0, three = 0, place = 0, kind = 0;
  int64_t others = 0;  // diagnoses that accused a healthy layer

  void add(const Json& said) {
    ++trials, found += said.value("found", false);
    layer += said.value("layer_right", false), three += said.value("layer_in_three", false);
    place += said.value("place_right", false), kind += said.value("kind_right", false);
    others += said.value("other_layers", 0) > 0;
  }
};

Json rate(int64_t right, int64_t trials) {
  const Interval interval = clopper_pearson_interval(right, trials);
  return {{"right", right}, {"trials", trials}, {"interval", {interval.low, interval.high}}};
}

Json to_json(const Counts& counts) {
  return {{"layer", rate(counts.layer, counts.trials)},
          {"layer_in_three", rate(counts.three, counts.trials)},
          {"layer_and_operator", rate(counts.place, counts.trials)},
          {"kind", rate(counts.kind, counts.trials)},
          {"accused_others", counts.others}};
}

struct MethodCost {
  int64_t diagnoses = 0;
  double seconds = 0, forwards = 0, layer_forwards = 0;

  void add(const Json& said) {
    ++diagnoses;
    seconds += said.value("seconds", 0.0), forwards += said.value("forwards", 0.0);
    layer_forwards += said.value("layer_forwards", 0.0);
  }
};

struct Healthy {
  int64_t flagged = 0, runs = 0;
};

struct Pair {  // who named the layer where the other did not
  int64_t only_this = 0, only_classic = 0;
};

Json to_json(const Pair& pair) {
  return {{"only_this", pair.only_this},
          {"only_classic", pair.only_classic},
          {"p", mcnemar_exact_test(pair.only_this, pair.only_classic)}};
}

struct Method {
  std::map<std::string, Counts> pools, intermittent;
  std::map<std::string, std::map<double, Counts>> curves;           // kind, strength
  std::map<std::string, std::map<std::string, int64_t>> confusion;  // planted, said
  std::map<std::string, Healthy> healthy;                           // by type and shape; "all"
  std::map<std::string, Pair> against_classic;                      // by pool; "all"
  MethodCost once;                                                  // diagnoses of one pass
  int64_t not_met = 0;  // trials whose fault changed nothing while this method looked
};

const std::set<std::string> kMethods = {"classic", "self", "shadow"};

struct CampaignSummary {
  std::map<std::string, Method> methods;
  std::map<std::string, int64_t> inactive;  // by planted fault
  int64_t planted = 0, diagnoses = 0;

  void add(const record::Trial& trial);
  void add_said(Method& method, const record::Trial& trial, const Json& said, std::optional<bool> classic_right) const;
};

void CampaignSummary::add_said(Method& method, const record::Trial& trial, const Json& said,
                               std::optional<bool> classic_right) const {
  const Json& outcome = trial.outcome;
  if (said.value("passes", 1) == 1) method.once.add(said);
  if (trial.key.cell == "healthy") {
    const std::string shape = fmt::format("{} x {}", outcome.value("dtype", ""), outcome.value("rows", 1));
    for (const std::string& name : {std::string("all"), outcome.value("dtype", std::string()), shape}) {
      Healthy& healthy = method.healthy[name];
      ++healthy.runs, healthy.flagged += said.value("found", false);
    }
    return;
  }
  const std::string kind = outcome.value("planted_kind", ""), pool = outcome.value("pool", "");
  if (trial.key.cell == "intermittent") {
    method.intermittent["all"].add(said), method.intermittent[kind].add(said);
    return;
  }
  if (trial.key.cell.starts_with("curve ")) {
    method.curves[kind][outcome.value("strength", 0.0)].add(said);
    return;
  }
  const std::string extent = fmt::format("{:g}", outcome.value("extent", 1.0));
  const std::string inside = pool == "layer output" ? pool : "inside the block";
  ++method.confusion[kind][said.value("found", false) ? said.value("kind", "") : "healthy"];
  for (const std::string& name : {std::string("all"), kind + " x " + pool, pool + " x " + extent,
                                  inside + " x " + extent + " in all", kind, pool})
    method.pools[name].add(said);
  if (!classic_right) return;
  const bool right = said.value("layer_right", false);
  for (const std::string& name : {std::string("all"), kind + " x " + pool}) {
    Pair& pair = method.against_classic[name];
    pair.only_this += right && !*classic_right, pair.only_classic += !right && *classic_right;
  }
}

void CampaignSummary::add(const record::Trial& trial) {
  const Json& outcome = trial.outcome;
  if (outcome.value("inactive", false)) {
    ++inactive[outcome.value("fault", "")];
    return;
  }
  planted += trial.key.cell != "healthy";
  std::optional<bool> classic;
  if (outcome.contains("classic") && ran_under_fault(outcome["classic"]))
    classic = outcome["classic"].value("layer_right", false);
  for (const std::string& name : kMethods) {
    if (!outcome.contains(name)) continue;
    if (!ran_under_fault(outcome[name])) {
      ++methods[name].not_met;
      continue;
    }
    ++diagnoses;
    add_said(methods[name], trial, outcome[name], classic);
  }
}

Json to_json(const Method& method, bool beside_classic) {
  Json json = {{"pools", Json::object()}, {"confusion", method.confusion}};
  for (const auto& [name, counts] : method.pools) json["pools"][name] = to_json(counts);
  for (const auto& [name, healthy] : method.healthy)
    json["healthy"][name] = {{"flagged", healthy.flagged},
                             {"runs", healthy.runs},
                             {"upper", clopper_pearson_upper(healthy.flagged, healthy.runs)}};
  for (const auto& [name, counts] : method.intermittent) json["intermittent"][name] = to_json(counts);
  for (const auto& [kind, points] : method.curves)
    for (const auto& [strength, counts] : points)
      json["curves"][kind].push_back({{"strength", strength}, {"layer", rate(counts.layer, counts.trials)}});
  const auto diagnoses = static_cast<double>(std::max<int64_t>(1, method.once.diagnoses));
  json["not_met"] = method.not_met;
  json["diagnoses_of_one_pass"] = method.once.diagnoses;
  json["seconds"] = method.once.seconds / diagnoses;
  json["forward_equivalents"] = method.once.forwards / diagnoses;
  json["layer_forward_equivalents"] = method.once.layer_forwards / diagnoses;
  if (beside_classic)
    for (const auto& [name, pair] : method.against_classic) json["against_classic"][name] = to_json(pair);
  return json;
}

}  // namespace

bool ran_under_fault(const Json& said) { return said.value("changed", 1) != 0; }

Json summarise(const std::function<void(const std::function<void(const record::Trial&)>&)>& for_each,
               const std::string& origin) {
  CampaignSummary summary;
  for_each([&](const record::Trial& trial) {
    try {
      summary.add(trial);
    } catch (const Json::exception& error) {
      throw RuntimeFailure(
          fmt::format("{}: trial {} of cell '{}': no outcome of a diagnosis: {}; it was edited or damaged: restore it "
                      "from a copy",
                      origin, trial.key.index, trial.key.cell, error.what()));
    }
  });
  Json methods = Json::object();
  for (const auto& [name, method] : summary.methods)
    methods[name] = to_json(method, name != "classic" && summary.methods.contains("classic"));
  int64_t inactive = 0;
  for (const auto& [name, count] : summary.inactive) inactive += count;
  return {{"planted", summary.planted},     {"inactive", inactive},        {"inactive_by_fault", summary.inactive},
          {"diagnoses", summary.diagnoses}, {"bars", judge_bars(methods)}, {"methods", methods}};
}

}  // namespace faultline::diagnose
