// The table of an experiment. Everything is paired by seed; a trial that died or whose evidence is missing leaves its
// pair, and the counts say so.
#include "experiment/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/stats.h"
#include "experiment/analysis_parts.h"
#include "record/document.h"

namespace faultline {
namespace {

constexpr double kTrendAlarm = 0.01;  // healthy experiments of five seeds and more give it once in a hundred
constexpr double kLeastLoss = 0.05;   // of the control under a fault: which share of less was won back is chance

using BySeed = std::map<int64_t, double>;

struct ArmData {
  std::vector<Trial> trials;            // with proof, those that died among them
  BySeed endpoint, clean, start, gain;  // start: clean accuracy before GRPO; gain: what GRPO added to it
  std::map<std::string, BySeed> under;  // by label
  std::vector<double> roughness, seconds, noise_seconds;
  int64_t died = 0, unproven = 0;
  std::vector<std::string> earlier;  // attempts without proof that were made again: what each complained of
};

// SD of first differences: how rough a curve is, whatever its trend.
std::optional<double> roughness_of(const Json& curve) {
  std::vector<double> differences;
  for (std::size_t i = 1; i < curve.size(); ++i)
    differences.push_back(curve[i].get<double>() - curve[i - 1].get<double>());
  if (differences.size() < 2) return std::nullopt;
  return sd_of(differences);
}

constexpr std::string_view kUnder = "faultline/under/", kClean = "val-core/";

void gather_trial(const Trial& trial, const std::string& endpoint, ArmData& data) {
  const Json results = trial.outcome.value("results", Json::object()), &curves = trial.outcome["curves"];
  const int64_t seed = trial.key.index;
  if (results.contains(endpoint)) data.endpoint[seed] = results[endpoint].get<double>();
  if (const auto rough = roughness_of(curves["reward"])) data.roughness.push_back(*rough);
  for (const Json& seconds : curves["seconds"]) data.seconds.push_back(seconds.get<double>());
  if (!curves["seconds"].empty())
    data.noise_seconds.push_back(trial.outcome.value("noise_seconds", 0.0) /
                                 static_cast<double>(curves["seconds"].size()));
  for (const auto& [key, value] : results.items()) {
    if (key.starts_with(kClean)) {
      data.clean[seed] = value.get<double>();
      if (const Json start = curves.value("start", Json::object()); start.contains(key)) {
        data.start[seed] = start[key].get<double>();
        data.gain[seed] = value.get<double>() - data.start[seed];
      }
    }
    if (key.starts_with(kUnder))
      data.under[key.substr(kUnder.size(), key.rfind('/') - kUnder.size())][seed] = value.get<double>();
  }
}

ArmData gather(CampaignStore& store, const Arm& arm, const std::string& endpoint) {
  ArmData data;
  for (Trial& trial : store.trials(arm.name)) {
    data.died += trial.status == TrialStatus::kFail;
    data.unproven += trial.status == TrialStatus::kError;
    if (trial.status == TrialStatus::kPass) gather_trial(trial, endpoint, data);
    if (trial.status != TrialStatus::kError) data.trials.push_back(std::move(trial));
  }
  for (int64_t number = 1; store.count(earlier_attempt(arm.name, number)) > 0; ++number)
    for (const Trial& trial : store.trials(earlier_attempt(arm.name, number)))
      data.earlier.push_back(trial.outcome.value("complaints", Json::array({""})).at(0).get<std::string>());
  return data;
}

Json mean_json(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  Json json = {{"mean", mean_of(values)}, {"n", values.size()}};
  if (values.size() >= 2) {
    const MeanInterval interval = t_interval(values);
    json["sd"] = interval.sd, json["interval"] = {interval.low, interval.high};
  }
  return json;
}

std::vector<double> values_of(const BySeed& by_seed) {
  std::vector<double> values;
  for (const auto& [seed, value] : by_seed) values.push_back(value);
  return values;
}

Json comparison(const BySeed& arm, const BySeed& control) {
  std::vector<double> treated, untreated;
  for (const auto& [seed, value] : arm) {
    const auto pair = control.find(seed);
    if (pair != control.end()) treated.push_back(value), untreated.push_back(pair->second);
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

// Mean over the seeds that got there, step by step.
Json mean_curve(const std::vector<Trial>& trials, const char* name) {
  std::vector<std::vector<double>> steps;
  for (const Trial& trial : trials) {
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
  for (const Trial& trial : data.trials)
    if (trial.status == TrialStatus::kFail)
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
    json[label]["against_control"] = comparison(by_seed, theirs);
  }
  return json;
}

// Whether the arm has faults alone and they changed nothing: with that a trial has proof only where it was promised
// (expect: invisible).
bool promised_invisible(const Trial& trial) {
  const Json counts = trial.evidence.value("faults", Json::object()).value("counts", Json::array());
  return !counts.empty() && !trial.evidence.contains("aqn") &&
         std::all_of(counts.begin(), counts.end(), [](const Json& count) { return count["changed"] == 0; });
}

// Seeds in which an arm lost exactly what the control did, step by step, and had not promised to: an alarm, not a
// success (lesson 34).
int64_t identical_seeds(const ArmData& one, const ArmData& control) {
  int64_t same = 0;
  for (const Trial& trial : one.trials)
    for (const Trial& other : control.trials) {
      if (trial.key.index != other.key.index || promised_invisible(trial)) continue;
      const Json &mine = trial.outcome["curves"]["loss"], &theirs = other.outcome["curves"]["loss"];
      const bool moved =
          std::any_of(mine.begin(), mine.end(), [](const Json& loss) { return loss.get<double>() != 0; });
      same += moved && mine == theirs;
    }
  return same;
}

// Seeds are independent: what they begin with has no trend. Where it has one, something is carried from trial to trial.
Json starts_json(const std::map<std::string, ArmData>& data) {
  BySeed starts;
  for (const auto& [name, one] : data) starts.insert(one.start.begin(), one.start.end());
  const std::vector<double> values = values_of(starts);
  Json json = {{"values", values}};
  if (values.empty()) return json;
  json["p_of_a_trend"] = trend_p(values);
  json["alarm"] = json["p_of_a_trend"] < kTrendAlarm;
  return json;
}

// Holm's correction of whatever of these could be tested.
void adjust(std::vector<Json*> tested) {
  std::vector<double> p_values;
  std::erase_if(tested, [](const Json* one) { return !one->contains("p"); });
  for (const Json* one : tested) p_values.push_back((*one)["p"].get<double>());
  if (p_values.empty()) return;
  const std::vector<double> adjusted = holm_adjust(p_values);
  for (std::size_t i = 0; i < tested.size(); ++i) (*tested[i])["p_holm"] = adjusted[i];
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
              {"seconds_a_step", mean_json(one.seconds)},
              {"noise_seconds_a_step", mean_json(one.noise_seconds)},
              {"curves", {{"reward", mean_curve(one.trials, "reward")}, {"loss", mean_curve(one.trials, "loss")}}}};
  if (!one.earlier.empty()) row["earlier_attempts"] = one.earlier;
  if (!one.under.empty()) row["under"] = under_json(one, control);
  if (control == nullptr || control == &one) return row;
  row["against_control"] = comparison(one.endpoint, control->endpoint);
  if (!one.seconds.empty() && !control->seconds.empty())
    row["overhead"] = mean_of(one.seconds) / mean_of(control->seconds) - 1;
  row["identical_seeds"] = identical_seeds(one, *control);
  return row;
}

}  // namespace

std::string common_endpoint(const ExperimentSpec& spec, CampaignStore& store) {
  if (!spec.endpoint.empty()) return spec.endpoint;
  std::string faulty, clean;
  store.for_each([&](Trial&& trial) {
    const Json results = trial.outcome.value("results", Json::object());
    for (const auto& [key, value] : results.items()) {
      if (key.starts_with("faultline/val-faulty/")) faulty = key;
      if (key.starts_with(kClean)) clean = key;
    }
  });
  return faulty.empty() ? clean : faulty;
}

BySeed endpoint_by_seed(CampaignStore& store, const std::string& cell, const std::string& endpoint) {
  BySeed values;
  for (const Trial& trial : store.trials(cell)) {
    if (trial.status != TrialStatus::kPass) continue;
    const Json results = trial.outcome.value("results", Json::object());
    if (results.contains(endpoint)) values[trial.key.index] = results[endpoint].get<double>();
  }
  return values;
}

Json analyse(const ExperimentSpec& spec, const std::filesystem::path& folder) {
  CampaignStore store(folder / "campaign.sqlite");
  const std::string endpoint = common_endpoint(spec, store);
  std::map<std::string, ArmData> data;
  for (const Arm& arm : spec.arms) data.emplace(arm.name, gather(store, arm, endpoint));
  const ArmData* control = spec.control.empty() ? nullptr : &data.at(spec.control);
  Json rows = Json::array(), contrasts = Json::array();
  for (const Arm& arm : spec.arms) rows.push_back(row_json(arm, data.at(arm.name), control));
  std::vector<Json*> tested;
  for (Json& row : rows)
    if (row.contains("against_control")) tested.push_back(&row["against_control"]);
  adjust(tested);
  for (const Contrast& one : spec.contrasts) {
    Json contrast = comparison(data.at(one.arm).endpoint, data.at(one.against).endpoint);
    contrast.update({{"name", one.name}, {"arm", one.arm}, {"against", one.against}});
    contrasts.push_back(std::move(contrast));
  }
  tested.clear();
  for (Json& contrast : contrasts) tested.push_back(&contrast);
  adjust(tested);
  Json json = {{"question", spec.question}, {"control", spec.control}, {"endpoint", endpoint},       {"arms", rows},
               {"contrasts", contrasts},    {"seeds", spec.seeds},     {"starts", starts_json(data)}};
  if (std::filesystem::exists(folder / "design.json"))
    json["design"] = read_document(folder / "design.json", "experiment_design");
  if (std::filesystem::exists(folder / "calibration.json"))
    json["calibration"] = read_document(folder / "calibration.json", "calibration");
  if (!spec.contrasts.empty())
    json["fewest_pairs_for_holm"] =
        fewest_sign_flip_pairs(kAlpha, static_cast<int64_t>(spec.contrasts.size()));  // lesson 57
  return json;
}

}  // namespace faultline
