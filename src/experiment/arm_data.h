// The trials of one arm as the table needs them: numbers by seed, because the seed is the unit of everything that is
// said about them.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/stats/stats.h"
#include "experiment/experiment.h"
#include "record/campaign_store.h"

namespace faultline::experiment {

inline constexpr std::string_view kCleanMetric = "val-core/";

using BySeed = std::map<int64_t, double>;

struct ArmData {
  std::vector<record::Trial> trials;    // with proof, those that died among them
  BySeed endpoint, clean, start, gain;  // start: clean accuracy before GRPO; gain: what GRPO added to it
  BySeed seconds, noise_seconds;        // a step, mean over a trial's
  std::map<std::string, BySeed> under;  // by label
  std::vector<double> roughness;
  int64_t died = 0, unproven = 0;
  std::vector<std::string> earlier;  // attempts without proof that were made again: what each complained of
};

ArmData gather(record::CampaignStore& store, const Arm& arm, const std::string& endpoint);
std::vector<double> values_of(const BySeed& by_seed);

// Seeds in which two arms lost exactly the same, step by step, without a promise of one to change nothing: an alarm,
// not a success (docs/lessons.md 34).
int64_t identical_seeds(const ArmData& one, const ArmData& other);

// What the reader of a table must know besides its numbers: whether its trials came before its design, whether pairs
// were trained alike, what was not tested. Nothing of this is refused, because a record that says so is worth more than
// none; everything is a sentence, written once for the terminal, the page and the published tables.

// Distinct devices and versions of the program, of all trials with proof.
Json made_with(const std::map<std::string, ArmData>& data);

// Adds "remarks" to an analysis that has contrasts and starts and, where there is one, the design; then also
// "before_design", how many of the table's trials are older than it.
void add_remarks(const ExperimentSpec& spec, const std::map<std::string, ArmData>& data, record::CampaignStore& store,
                 Json& analysis);

// What design and table share: which number of a trial is compared, and at which level.

inline constexpr double kPower = 0.8;
inline constexpr int64_t kFewestForATrend = 6;  // seeds

// The level of Holm's first step, at which the smallest p of the declared contrasts is judged.
inline double first_level(const ExperimentSpec& spec) {
  return kAlpha / static_cast<double>(std::max<std::size_t>(1, spec.contrasts.size()));
}

// One metric for all arms (docs/lessons.md 30): accuracy under the fault where any trial has it, clean accuracy
// otherwise.
std::string common_endpoint(const ExperimentSpec& spec, record::CampaignStore& store);
// Of the trials that ended with their evidence, by seed index.
std::map<int64_t, double> endpoint_by_seed(record::CampaignStore& store, const std::string& cell,
                                           const std::string& endpoint);

}  // namespace faultline::experiment
