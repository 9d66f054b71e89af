// The table of an experiment. Everything is paired by seed; a trial that died or whose evidence is missing leaves its
// pair, and the counts say so.
#include "experiment/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/stats/stats.h"
#include "experiment/arm_data.h"
#include "record/document.h"

namespace faultline::experiment {
namespace {

constexpr double kTrendAlarm = 0.01;  // healthy experiments of six seeds and more give it at most once in a hundred
constexpr double kLeastLoss = 0.05;   // of the control under a fault: which share of less was won back is chance

Json mean_json(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  Json json = {{"mean", mean_of(values)}, {"n", values.size()}};
  if (values.size() >= 2) {
    const MeanInterval interval = t_interval(values);
    json["sd"] = interval.sd, json["interval"] = {interval.low, interval.high};
  }
  return json;
}

struct Pairs {
  std::vector<double> treated, untreated;
};

Pairs pairs_of(const BySeed& arm, const BySeed& control) {
  Pairs pairs;
  for (const auto& [seed, value] : arm)
    if (const auto pair = control.find(seed); pair != control.end())
      pairs.treated.push_back(value), pairs.untreated.push_back(pair->second);
  return pairs;
}

// Descriptive: no p, because a test that no contrast names would be of a family that nobody declared.
Json difference_json(const Pairs& pairs) {
  Json json = {{"pairs", pairs.treated.size()}};
  if (pairs.treated.size() < 2) return json;
  const MeanInterval interval = paired_t_interval(pairs.treated, pairs.untreated);
  json.update({{"difference", interval.mean}, {"interval", {interval.low, interval.high}}, {"sd", interval.sd}});
  return json;
}

// level: of Holm's first step, at which the smallest p of the family is judged. What would have been seen is the power
// of a t test at that level, and nothing where so few pairs cannot pass it whatever the effect.
Json tested_json(const Pairs& pairs, double level) {
  Json json = difference_json(pairs);
  const auto count = std::ssize(pairs.treated);
  if (count < 2) return json;
  const PermutationResult test = sign_flip_test(paired_differences(pairs.treated, pairs.untreated));
  const double smallest = smallest_sign_flip_p(count), sd = json["sd"].get<double>();
  json.update({{"p", test.p_value}, {"exact", test.exact}, {"smallest_p", smallest}, {"resolvable", nullptr}});
  if (sd > 0 && smallest <= level) json["resolvable"] = paired_t_detectable_effect(sd, count, kPower, level);
  return json;
}

// Mean over the seeds that got there, step by step.
Json mean_curve(const std::vector<record::Trial>& trials, const char* name) {
  std::vector<std::vector<double>> steps;
  for (const record::Trial& trial : trials) {
    const Json curves = trial.outcome.value("curves", Json::object());
    const Json curve = curves.value(name, Json::array());
    if (steps.size() < curve.size()) steps.resize(curve.size());
    for (std::size_t i = 0; i < curve.size(); ++i) steps[i].push_back(curve[i].get<double>());
  }
  Json means = Json::array();
  for (const std::vector<double>& values : steps) means.push_back(mean_of(values));
  return means;
}

// How many of the trials with proof came to their end, and at which step the others did not.
Json survival_json(const ArmData& data) {
  const auto trials = static_cast<int64_t>(data.trials.size()), alive = trials - data.died;
  Json json = {{"trials", trials}, {"survived", alive}};
  if (trials == 0) return json;
  const Interval interval = clopper_pearson_interval(alive, trials);
  json["interval"] = {interval.low, interval.high};
  json["steps_of_death"] = Json::array();
  for (const record::Trial& trial : data.trials)
    if (trial.status == record::TrialStatus::kFail)
      json["steps_of_death"].push_back(trial.outcome["curves"]["reward"].size() + 1);
  return json;
}

// What a fault takes from the clean accuracy, seed by seed.
BySeed loss_under(const ArmData& one, const BySeed& under) {
  BySeed losses;
  for (const auto& [seed, value] : under)
    if (const auto clean = one.clean.find(seed); clean != one.clean.end()) losses[seed] = clean->second - value;
  return losses;
}

// Which part of the control's loss an arm won back; nothing where there is next to nothing to win.
Json recovery_json(const BySeed& arm, const BySeed& control, const BySeed& control_loss) {
  if (control_loss.empty() || mean_of(values_of(control_loss)) < kLeastLoss) return nullptr;
  std::vector<double> shares;
  for (const auto& [seed, value] : arm)
    if (const auto loss = control_loss.find(seed); loss != control_loss.end() && loss->second > 0)
      shares.push_back((value - control.at(seed)) / loss->second);
  return mean_json(shares);
}

// Under each fault: accuracy, what it costs this arm, and which part of the control's loss training won back.
Json under_json(const ArmData& one, const ArmData* control) {
  Json json = Json::object();
  for (const auto& [label, by_seed] : one.under) {
    json[label] = {{"accuracy", mean_json(values_of(by_seed))},
                   {"degradation", mean_json(values_of(loss_under(one, by_seed)))},
                   {"recovery", nullptr}};
    if (control == nullptr || control == &one || !control->under.contains(label)) continue;
    const BySeed& theirs = control->under.at(label);
    json[label]["recovery"] = recovery_json(by_seed, theirs, loss_under(*control, theirs));
    json[label]["against_control"] = difference_json(pairs_of(by_seed, theirs));
  }
  return json;
}

// Seeds are independent: what they begin with has no trend. Where it has one, something is carried from trial to trial.
// Few seeds cannot show one: n values that only rise have p = 2/n!, which six are the fewest to take below the alarm's.
Json starts_json(const std::map<std::string, ArmData>& data) {
  BySeed starts;
  for (const auto& [name, one] : data) starts.insert(one.start.begin(), one.start.end());
  const std::vector<double> values = values_of(starts);
  Json json = {{"values", values}, {"tested", std::ssize(values) >= kFewestForATrend}};
  if (!json["tested"].get<bool>()) return json;
  json["p_of_a_trend"] = trend_p(values);
  json["alarm"] = json["p_of_a_trend"] < kTrendAlarm;
  return json;
}

// Holm's correction. The family is what was declared: a contrast that could not be tested counts in it, with p = 1.
void adjust(Json& contrasts) {
  std::vector<double> p_values;
  for (const Json& one : contrasts) p_values.push_back(one.value("p", 1.0));
  if (p_values.empty()) return;
  const std::vector<double> adjusted = holm_adjust(p_values);
  for (std::size_t i = 0; i < contrasts.size(); ++i)
    if (contrasts[i].contains("p")) contrasts[i]["p_holm"] = adjusted[i];
}

Json contrasts_json(const ExperimentSpec& spec, const std::map<std::string, ArmData>& data) {
  Json contrasts = Json::array();
  for (const Contrast& one : spec.contrasts) {
    const ArmData &arm = data.at(one.arm), &against = data.at(one.against);
    Json contrast = tested_json(pairs_of(arm.endpoint, against.endpoint), first_level(spec));
    contrast.update({{"name", one.name},
                     {"arm", one.arm},
                     {"against", one.against},
                     {"identical_seeds", identical_seeds(arm, against)}});
    contrasts.push_back(std::move(contrast));
  }
  adjust(contrasts);
  return contrasts;
}

// By which share a step takes longer than the control's of the same seed.
Json overhead_json(const BySeed& seconds, const BySeed& control) {
  std::vector<double> shares;
  for (const auto& [seed, value] : seconds)
    if (const auto pair = control.find(seed); pair != control.end() && pair->second > 0)
      shares.push_back(value / pair->second - 1);
  return shares.size() < 2 ? Json() : mean_json(shares);
}

Json row_json(const Arm& arm, const ArmData& one, const ArmData* control) {
  Json row = {{"arm", arm.name},
              {"trials", std::ssize(one.trials) + one.unproven},
              {"died", one.died},
              {"evidence_missing", one.unproven},
              {"survival", survival_json(one)},
              {"endpoint", mean_json(values_of(one.endpoint))},
              {"clean", mean_json(values_of(one.clean))},
              {"gain", mean_json(values_of(one.gain))},
              {"roughness", mean_json(one.roughness)},
              {"seconds_a_step", mean_json(values_of(one.seconds))},
              {"noise_seconds_a_step", mean_json(values_of(one.noise_seconds))},
              {"curves", {{"reward", mean_curve(one.trials, "reward")}, {"loss", mean_curve(one.trials, "loss")}}}};
  if (!one.earlier.empty()) row["earlier_attempts"] = one.earlier;
  if (!one.under.empty()) row["under"] = under_json(one, control);
  if (control == nullptr || control == &one) return row;
  row["against_control"] = difference_json(pairs_of(one.endpoint, control->endpoint));
  row["overhead"] = overhead_json(one.seconds, control->seconds);
  row["identical_seeds"] = identical_seeds(one, *control);
  return row;
}

}  // namespace

std::string common_endpoint(const ExperimentSpec& spec, record::CampaignStore& store) {
  if (!spec.endpoint.empty()) return spec.endpoint;
  std::string faulty, clean;
  store.for_each([&](record::Trial&& trial) {
    const Json results = trial.outcome.value("results", Json::object());
    for (const auto& [key, value] : results.items()) {
      if (key.starts_with("faultline/val-faulty/")) faulty = key;
      if (key.starts_with(kCleanMetric)) clean = key;
    }
  });
  return faulty.empty() ? clean : faulty;
}

BySeed endpoint_by_seed(record::CampaignStore& store, const std::string& cell, const std::string& endpoint) {
  BySeed values;
  for (const record::Trial& trial : store.trials(cell)) {
    if (trial.status != record::TrialStatus::kPass) continue;
    const Json results = trial.outcome.value("results", Json::object());
    if (results.contains(endpoint)) values[trial.key.index] = results[endpoint].get<double>();
  }
  return values;
}

Json analyse(const ExperimentSpec& spec, const std::filesystem::path& folder) {
  record::CampaignStore store(folder / "campaign.sqlite");
  const std::string endpoint = common_endpoint(spec, store);
  std::map<std::string, ArmData> data;
  for (const Arm& arm : spec.arms) data.emplace(arm.name, gather(store, arm, endpoint));
  const ArmData* control = spec.control.empty() ? nullptr : &data.at(spec.control);
  Json rows = Json::array();
  for (const Arm& arm : spec.arms) rows.push_back(row_json(arm, data.at(arm.name), control));
  Json json = {{"question", spec.question},   {"control", spec.control},     {"endpoint", endpoint},
               {"arms", std::move(rows)},     {"seeds", spec.seeds},         {"contrasts", contrasts_json(spec, data)},
               {"starts", starts_json(data)}, {"made_with", made_with(data)}};
  if (std::filesystem::exists(folder / "design.json"))
    json["design"] = record::read_document(folder / "design.json", "experiment_design");
  if (std::filesystem::exists(folder / "calibration.json"))
    json["calibration"] = record::read_document(folder / "calibration.json", "calibration");
  if (!spec.contrasts.empty())
    json["fewest_pairs_for_holm"] =
        fewest_sign_flip_pairs(kAlpha, static_cast<int64_t>(spec.contrasts.size()));  // docs/lessons.md 57
  add_remarks(spec, data, store, json);
  return json;
}

}  // namespace faultline::experiment
