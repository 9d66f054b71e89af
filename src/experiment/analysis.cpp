// The table of an experiment. Everything is paired by seed; a trial that died or whose evidence is missing leaves its
// pair, and the counts say so.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <optional>

#include "base/stats.h"
#include "experiment/experiment.h"

namespace faultline {
namespace {

constexpr double kAlpha = 0.05, kPower = 0.8;

struct ArmData {
  std::map<int64_t, double> endpoint;  // by seed index
  std::vector<double> roughness, seconds, clean;
  int64_t trials = 0, died = 0, unproven = 0;
};

// One metric for all arms (lesson 30): accuracy under the fault where any trial has it, clean accuracy otherwise.
std::string common_endpoint(const ExperimentSpec& spec, CampaignStore& store) {
  if (!spec.endpoint.empty()) return spec.endpoint;
  std::string clean;
  for (const Arm& arm : spec.arms) {
    for (const Trial& trial : store.trials(arm.name)) {
      const Json results = trial.outcome.value("results", Json::object());
      for (const auto& [key, value] : results.items()) {
        if (key.starts_with("faultline/val-faulty/")) return key;
        if (key.starts_with("val-core/")) clean = key;
      }
    }
  }
  return clean;
}

// SD of first differences: how rough a curve is, whatever its trend.
std::optional<double> roughness_of(const Json& curve) {
  std::vector<double> differences;
  for (std::size_t i = 1; i < curve.size(); ++i)
    differences.push_back(curve[i].get<double>() - curve[i - 1].get<double>());
  if (differences.size() < 2) return std::nullopt;
  return sd_of(differences);
}

ArmData gather(CampaignStore& store, const Arm& arm, const std::string& endpoint) {
  ArmData data;
  for (const Trial& trial : store.trials(arm.name)) {
    ++data.trials;
    data.died += trial.status == TrialStatus::kFail;
    data.unproven += trial.status == TrialStatus::kError;
    if (trial.status != TrialStatus::kPass) continue;
    const Json &results = trial.outcome["results"], &curves = trial.outcome["curves"];
    if (results.contains(endpoint)) data.endpoint[trial.key.index] = results[endpoint].get<double>();
    if (const auto rough = roughness_of(curves["reward"])) data.roughness.push_back(*rough);
    for (const Json& seconds : curves["seconds"]) data.seconds.push_back(seconds.get<double>());
    for (const auto& [key, value] : results.items())
      if (key.starts_with("val-core/")) data.clean.push_back(value.get<double>());
  }
  return data;
}

Json mean_json(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  Json json = {{"mean", mean_of(values)}, {"n", values.size()}};
  if (values.size() >= 2) json["sd"] = sd_of(values);
  return json;
}

std::vector<double> values_of(const std::map<int64_t, double>& by_seed) {
  std::vector<double> values;
  for (const auto& [seed, value] : by_seed) values.push_back(value);
  return values;
}

Json comparison(const ArmData& arm, const ArmData& control) {
  std::vector<double> treated, untreated;
  for (const auto& [seed, value] : arm.endpoint) {
    const auto pair = control.endpoint.find(seed);
    if (pair != control.endpoint.end()) treated.push_back(value), untreated.push_back(pair->second);
  }
  const auto pairs = static_cast<int64_t>(treated.size());
  Json json = {{"pairs", pairs}};
  if (pairs < 2) return json;
  const std::vector<double> differences = paired_differences(treated, untreated);
  const MeanInterval interval = paired_t_interval(treated, untreated);
  const PermutationResult test = sign_flip_test(differences);
  json.update({{"difference", interval.mean},
               {"interval", {interval.low, interval.high}},
               {"sd", interval.sd},
               {"p", test.p_value},
               {"exact", test.exact},
               {"smallest_p", smallest_sign_flip_p(pairs)}});
  if (interval.sd > 0) json["resolvable"] = paired_t_detectable_effect(interval.sd, pairs, kPower, kAlpha);
  return json;
}

}  // namespace

Json analyse(const ExperimentSpec& spec, CampaignStore& store) {
  const std::string endpoint = common_endpoint(spec, store);
  std::map<std::string, ArmData> data;
  for (const Arm& arm : spec.arms) data.emplace(arm.name, gather(store, arm, endpoint));
  Json rows = Json::array();
  std::vector<double> p_values;
  std::vector<std::size_t> tested;
  for (const Arm& arm : spec.arms) {
    const ArmData& one = data.at(arm.name);
    Json row = {{"arm", arm.name},
                {"trials", one.trials},
                {"died", one.died},
                {"evidence_missing", one.unproven},
                {"endpoint", mean_json(values_of(one.endpoint))},
                {"clean", mean_json(one.clean)},
                {"roughness", mean_json(one.roughness)},
                {"seconds_a_step", mean_json(one.seconds)}};
    if (!spec.control.empty() && arm.name != spec.control) {
      row["against_control"] = comparison(one, data.at(spec.control));
      if (row["against_control"].contains("p")) {
        p_values.push_back(row["against_control"]["p"].get<double>());
        tested.push_back(rows.size());
      }
    }
    rows.push_back(std::move(row));
  }
  if (!p_values.empty()) {
    const std::vector<double> adjusted = holm_adjust(p_values);
    for (std::size_t i = 0; i < tested.size(); ++i) rows[tested[i]]["against_control"]["p_holm"] = adjusted[i];
  }
  Json json = {{"question", spec.question}, {"control", spec.control}, {"endpoint", endpoint}, {"arms", rows}};
  const auto comparisons = static_cast<int64_t>(spec.arms.size()) - 1;
  if (!spec.control.empty() && comparisons > 0)
    json["fewest_pairs_for_holm"] = fewest_sign_flip_pairs(kAlpha, comparisons);  // lesson 57
  return json;
}

}  // namespace faultline
