// The design of an experiment, from pilots whose answers are known.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/stats/stats.h"
#include "experiment/analysis.h"
#include "experiment/known_trials.h"

namespace faultline::experiment {
namespace design_test {

namespace fs = std::filesystem;

TEST(Design, IsWrittenOnceFromThePilotAndNeverAfterTheResults) {
  Folder folder;
  const double spread[] = {0.02, -0.01, 0.01, 0.0, 0.03, -0.02};
  for (int64_t seed = 0; seed < 6; ++seed) {
    folder.add(trial_of("pilot:control", seed, 0.5 + 0.02 * static_cast<double>(seed)));
    folder.add(trial_of("pilot:arm", seed, 0.5 + 0.02 * static_cast<double>(seed) + spread[seed]));
  }
  ExperimentSpec spec = spec_of({"control", "arm"}, {{"c", "arm", "control"}});
  spec.seeds = 12;
  const Json design = write_design(spec, folder.directory.path());
  const double sd = sd_of(spread);
  EXPECT_NEAR(design["pilot"]["sd_of_differences"].get<double>(), sd, 1e-12);
  EXPECT_NEAR(design["resolvable"].get<double>(), paired_t_detectable_effect(sd, 12, 0.8, 0.05), 1e-12);
  folder.add(trial_of("arm", 0, 0.9));
  spec.seeds = 3;
  EXPECT_EQ(write_design(spec, folder.directory.path()), design) << "frozen";
  Folder late;
  late.add(trial_of("arm", 0, 0.9));
  EXPECT_THROW(write_design(spec, late.directory.path()), UsageError);
}

ExperimentSpec with_pilot(int64_t pilot, int64_t seeds) {
  ExperimentSpec spec = spec_of({"control", "arm"}, {{"c", "arm", "control"}, {"d", "control", "arm"}});
  spec.pilot = pilot, spec.seeds = seeds;
  return spec;
}

TEST(Design, IsNotMadeOfAPartOfAPilot) {
  Folder folder;
  const fs::path file = folder.directory.path() / "design.json";
  for (int64_t seed = 0; seed < 2; ++seed) {
    folder.add(trial_of("pilot:control", seed, 0.5));
    folder.add(trial_of("pilot:arm", seed, 0.5 + 0.01 * static_cast<double>(seed)));
  }
  EXPECT_THROW(write_design(with_pilot(3, 12), folder.directory.path()), UsageError);
  EXPECT_FALSE(fs::exists(file));
  folder.add(trial_of("pilot:control", 2, 0.5));
  record::Trial unproven = trial_of("pilot:arm", 2, 0.5);
  unproven.status = record::TrialStatus::kError;
  folder.add(unproven);
  EXPECT_THROW(write_design(with_pilot(3, 12), folder.directory.path()), EvidenceError);
  EXPECT_FALSE(fs::exists(file));
  folder.store.set_errors_aside({unproven.key});
  folder.add(trial_of("pilot:arm", 2, 0.5));
  EXPECT_EQ(write_design(with_pilot(3, 12), folder.directory.path())["pilot"]["pairs"], 3);
}

TEST(Design, NeedsPairsThatCameToTheirEnd) {
  Folder folder;
  for (int64_t seed = 0; seed < 2; ++seed) {
    folder.add(trial_of("pilot:control", seed, 0.5));
    record::Trial died = trial_of("pilot:arm", seed, 0.5);
    died.status = record::TrialStatus::kFail;
    folder.add(died);
  }
  EXPECT_THROW(write_design(with_pilot(2, 12), folder.directory.path()), EvidenceError);
}

TEST(Design, PromisesNothingThatTheTestCannotKeep) {
  const auto design = [](int64_t seeds) {
    Folder folder;
    for (int64_t seed = 0; seed < 2; ++seed) {
      folder.add(trial_of("pilot:control", seed, 0.5));
      folder.add(trial_of("pilot:arm", seed, 0.5 + 0.001 * static_cast<double>(seed)));
    }
    return write_design(with_pilot(2, seeds), folder.directory.path());
  };
  EXPECT_EQ(design(12)["pairs_for_three_points"], 7) << "a t test of so small a spread would ask for fewer";
  EXPECT_TRUE(design(7).contains("resolvable"));
  EXPECT_FALSE(design(6).contains("resolvable"));
  EXPECT_TRUE(design(6).contains("resolvable_alone")) << "a single contrast is judged at 0.05";
  EXPECT_FALSE(design(5).contains("resolvable_alone"));
}

}  // namespace design_test
}  // namespace faultline::experiment
