// Trials whose answers are known, for tests of what is made of them.
#pragma once

#include <gtest/gtest.h>

#include "base/files/temporary_folder.h"
#include "experiment/experiment.h"
#include "record/campaign_store.h"

namespace faultline::experiment {

inline constexpr const char* kMetric = "faultline/val-faulty/arithmetic/acc/mean@1";

inline record::Trial trial_of(const std::string& arm, int64_t seed, double accuracy,
                              const std::vector<double>& losses = {0.1, 0.3, 0.2}) {
  record::Trial trial{.key = {arm, seed}, .seed = 7, .status = record::TrialStatus::kPass};
  trial.outcome = {
      {"results", {{kMetric, accuracy}, {"val-core/arithmetic/acc/mean@1", accuracy + 0.1}}},
      {"curves", {{"reward", {0.1, 0.2, 0.4}}, {"loss", losses}, {"seconds", {1.0, 1.0, 1.0}}}},
  };
  return trial;
}

inline ExperimentSpec spec_of(const std::vector<std::string>& arms, std::vector<Contrast> contrasts) {
  ExperimentSpec spec;
  for (const std::string& arm : arms) spec.arms.push_back({arm, {}, {}});
  spec.control = arms.front();
  spec.contrasts = std::move(contrasts);
  return spec;
}

struct Folder {
  TemporaryFolder directory;
  record::CampaignStore store{directory.path() / "campaign.sqlite"};
  void add(const record::Trial& trial) { ASSERT_TRUE(store.insert(trial)); }
};

inline const Json& row_of(const Json& analysis, const std::string& arm) {
  for (const Json& row : analysis["arms"])
    if (row["arm"] == arm) return row;
  throw std::runtime_error(arm);
}

}  // namespace faultline::experiment
