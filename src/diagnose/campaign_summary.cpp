// What a campaign's trials add up to.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/stats.h"
#include "diagnose/campaign.h"

namespace faultline {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Counts {
  int64_t trials = 0, layer = 0, three = 0, place = 0, kind = 0;
};

OrderedJson rate(int64_t right, int64_t trials) {
  const Interval interval = clopper_pearson_interval(right, trials);
  return {{"right", right}, {"trials", trials}, {"interval", {interval.low, interval.high}}};
}

OrderedJson to_json(const Counts& counts) {
  return {{"layer", rate(counts.layer, counts.trials)},
          {"layer_in_three", rate(counts.three, counts.trials)},
          {"layer_and_operator", rate(counts.place, counts.trials)},
          {"kind", rate(counts.kind, counts.trials)}};
}

const std::set<std::string> kMethods = {"classic", "self", "shadow"};

struct Summary {
  std::map<std::string, std::map<std::string, Counts>> pools;                              // method, pool
  std::map<std::string, std::map<std::string, std::map<std::string, int64_t>>> confusion;  // method, planted, said
  std::map<std::string, std::pair<int64_t, int64_t>> healthy;                              // flagged, all
  std::map<std::string, std::pair<double, double>> cost;                                   // seconds, forwards
  std::map<std::string, std::pair<int64_t, int64_t>> against_classic;  // only it, only classic named the layer
  int64_t planted = 0, inactive = 0, diagnoses = 0;

  void add(const Trial& trial);
};

void Summary::add(const Trial& trial) {
  const Json& outcome = trial.outcome;
  if (outcome.value("inactive", false)) {
    ++inactive;
    return;
  }
  const bool is_healthy = trial.key.cell == "healthy";
  planted += !is_healthy;
  const bool classic = outcome.contains("classic") && outcome["classic"].value("layer_right", false);
  for (const std::string& method : kMethods) {
    if (!outcome.contains(method)) continue;
    const Json& said = outcome[method];
    ++diagnoses;
    cost[method].first += said.value("seconds", 0.0), cost[method].second += said.value("forwards", 0.0);
    if (is_healthy) {
      healthy[method].first += said.value("found", false), ++healthy[method].second;
      continue;
    }
    const std::string kind = outcome["planted_kind"], pool = outcome["pool"];
    const std::string extent = fmt::format("{:g}", outcome["extent"].get<double>());
    ++confusion[method][kind][said.value("found", false) ? said.value("kind", "") : "healthy"];
    for (const std::string& name : {std::string("all"), kind + " x " + pool, pool + " x " + extent, kind, pool}) {
      Counts& counts = pools[method][name];
      ++counts.trials;
      counts.layer += said.value("layer_right", false), counts.three += said.value("layer_in_three", false);
      counts.place += said.value("place_right", false), counts.kind += said.value("kind_right", false);
    }
    const bool layer = said.value("layer_right", false);
    against_classic[method].first += layer && !classic, against_classic[method].second += !layer && classic;
  }
}

}  // namespace

OrderedJson summarise(CampaignStore& store) {
  Summary summary;
  store.for_each([&](Trial&& trial) { summary.add(trial); });
  OrderedJson methods = OrderedJson::object();
  for (const auto& [method, pools] : summary.pools) {
    OrderedJson one = {{"pools", OrderedJson::object()}, {"confusion", summary.confusion[method]}};
    for (const auto& [pool, counts] : pools) one["pools"][pool] = to_json(counts);
    const auto [flagged, runs] = summary.healthy[method];
    if (runs > 0) {
      one["healthy"] = {{"flagged", flagged}, {"runs", runs}, {"upper", clopper_pearson_upper(flagged, runs)}};
    }
    const auto [seconds, forwards] = summary.cost[method];
    const auto all = static_cast<double>(pools.at("all").trials + runs);
    one["seconds"] = seconds / all, one["forward_equivalents"] = forwards / all;
    const auto [better, worse] = summary.against_classic[method];
    if (method != "classic" && summary.pools.contains("classic"))
      one["against_classic"] = {
          {"only_this", better}, {"only_classic", worse}, {"p", mcnemar_exact_test(better, worse)}};
    methods[method] = std::move(one);
  }
  return {{"planted", summary.planted},
          {"inactive", summary.inactive},
          {"diagnoses", summary.diagnoses},
          {"methods", methods}};
}

}  // namespace faultline
