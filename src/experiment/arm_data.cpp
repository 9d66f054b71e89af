#include "experiment/arm_data.h"

#include <algorithm>
#include <optional>

#include "base/complaint.h"
#include "base/stats/stats.h"

namespace faultline::experiment {
namespace {

constexpr std::string_view kUnder = "faultline/under/";

// SD of first differences: how rough a curve is, whatever its trend.
std::optional<double> roughness_of(const Json& curve) {
  std::vector<double> differences;
  for (std::size_t i = 1; i < curve.size(); ++i)
    differences.push_back(curve[i].get<double>() - curve[i - 1].get<double>());
  if (differences.size() < 2) return std::nullopt;
  return sd_of(differences);
}

void gather_trial(const record::Trial& trial, const std::string& endpoint, ArmData& data) {
  const Json results = trial.outcome.value("results", Json::object()), &curves = trial.outcome["curves"];
  const int64_t seed = trial.key.index;
  if (results.contains(endpoint)) data.endpoint[seed] = results[endpoint].get<double>();
  if (const auto rough = roughness_of(curves["reward"])) data.roughness.push_back(*rough);
  if (const auto steps = curves["seconds"].get<std::vector<double>>(); !steps.empty()) {
    data.seconds[seed] = mean_of(steps);
    data.noise_seconds[seed] = trial.outcome.value("noise_seconds", 0.0) / static_cast<double>(steps.size());
  }
  for (const auto& [key, value] : results.items()) {
    if (key.starts_with(kCleanMetric)) {
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

// Whether the arm has faults alone and they changed nothing: with that a trial has proof only where it was promised
// (expect: invisible).
bool promised_invisible(const record::Trial& trial) {
  const Json counts = trial.evidence.value("faults", Json::object()).value("counts", Json::array());
  return !counts.empty() && !trial.evidence.contains("aqn") &&
         std::all_of(counts.begin(), counts.end(), [](const Json& count) { return count["changed"] == 0; });
}

// Whether it trained as if nothing had been asked of it.
bool trained_plainly(const record::Trial& trial) {
  const Json counts = trial.evidence.value("faults", Json::object()).value("counts", Json::array());
  return !trial.evidence.contains("aqn") && std::all_of(counts.begin(), counts.end(), [](const Json& count) {
    return count["phase"] == "eval" || count["changed"] == 0;
  });
}

bool may_be_equal(const record::Trial& one, const record::Trial& other) {
  return (promised_invisible(one) && trained_plainly(other)) || (promised_invisible(other) && trained_plainly(one));
}

}  // namespace

ArmData gather(record::CampaignStore& store, const Arm& arm, const std::string& endpoint) {
  ArmData data;
  for (record::Trial& trial : store.trials(arm.name)) {
    data.died += trial.status == record::TrialStatus::kFail;
    data.unproven += trial.status == record::TrialStatus::kError;
    if (trial.status == record::TrialStatus::kPass) gather_trial(trial, endpoint, data);
    if (trial.status != record::TrialStatus::kError) data.trials.push_back(std::move(trial));
  }
  for (int64_t number = 1; store.count(record::earlier_attempt(arm.name, number)) > 0; ++number)
    for (const record::Trial& trial : store.trials(record::earlier_attempt(arm.name, number)))
      data.earlier.push_back(complaint_from_json(trial.outcome.value("complaints", Json::array({""})).at(0)).sentence);
  return data;
}

std::vector<double> values_of(const BySeed& by_seed) {
  std::vector<double> values;
  for (const auto& [seed, value] : by_seed) values.push_back(value);
  return values;
}

int64_t identical_seeds(const ArmData& one, const ArmData& other) {
  int64_t same = 0;
  for (const record::Trial& mine : one.trials)
    for (const record::Trial& theirs : other.trials) {
      if (mine.key.index != theirs.key.index || may_be_equal(mine, theirs)) continue;
      const Json &losses = mine.outcome["curves"]["loss"], &others = theirs.outcome["curves"]["loss"];
      const bool moved =
          std::any_of(losses.begin(), losses.end(), [](const Json& loss) { return loss.get<double>() != 0; });
      same += moved && losses == others;
    }
  return same;
}

}  // namespace faultline::experiment
