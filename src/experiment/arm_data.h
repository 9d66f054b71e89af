// The trials of one arm as the table needs them: numbers by seed, because the seed is the unit of everything that is
// said about them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "experiment/experiment.h"
#include "record/campaign_store.h"

namespace faultline {

inline constexpr std::string_view kCleanMetric = "val-core/";

using BySeed = std::map<int64_t, double>;

struct ArmData {
  std::vector<Trial> trials;            // with proof, those that died among them
  BySeed endpoint, clean, start, gain;  // start: clean accuracy before GRPO; gain: what GRPO added to it
  BySeed seconds, noise_seconds;        // a step, mean over a trial's
  std::map<std::string, BySeed> under;  // by label
  std::vector<double> roughness;
  int64_t died = 0, unproven = 0;
  std::vector<std::string> earlier;  // attempts without proof that were made again: what each complained of
};

ArmData gather(CampaignStore& store, const Arm& arm, const std::string& endpoint);
std::vector<double> values_of(const BySeed& by_seed);

// Seeds in which two arms lost exactly the same, step by step, without a promise of one to change nothing: an alarm,
// not a success (lesson 34).
int64_t identical_seeds(const ArmData& one, const ArmData& other);

}  // namespace faultline
