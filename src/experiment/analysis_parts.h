// What design and table share: which number of a trial is compared, and at which level.
#pragma once

#include <algorithm>
#include <map>

#include "experiment/experiment.h"
#include "record/campaign_store.h"

namespace faultline {

inline constexpr double kAlpha = 0.05, kPower = 0.8;
inline constexpr int64_t kFewestForATrend = 6;  // seeds

// The level of Holm's first step, at which the smallest p of the declared contrasts is judged.
inline double first_level(const ExperimentSpec& spec) {
  return kAlpha / static_cast<double>(std::max<std::size_t>(1, spec.contrasts.size()));
}

// One metric for all arms (lesson 30): accuracy under the fault where any trial has it, clean accuracy otherwise.
std::string common_endpoint(const ExperimentSpec& spec, CampaignStore& store);
// Of the trials that ended with their evidence, by seed index.
std::map<int64_t, double> endpoint_by_seed(CampaignStore& store, const std::string& cell, const std::string& endpoint);

}  // namespace faultline
