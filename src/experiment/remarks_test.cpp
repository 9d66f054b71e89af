// What is said beside a table, from trials whose answers are known.
#include <gtest/gtest.h>

#include "experiment/analysis.h"
#include "experiment/arm_data.h"
#include "experiment/known_trials.h"
#include "record/document.h"

namespace faultline::experiment {
namespace remarks_test {

Json remarks_of(const Folder& folder, const ExperimentSpec& spec) {
  return analyse(spec, folder.directory.path())["remarks"];
}

const ExperimentSpec kSpec = spec_of({"control", "arm"}, {{"helps", "arm", "control"}});

TEST(Remarks, CountTrialsThatAreOlderThanTheDesign) {
  Folder folder;
  for (int64_t seed = 0; seed < 3; ++seed)
    for (const char* arm : {"control", "arm"}) {
      record::Trial trial = trial_of(arm, seed, 0.5);
      trial.started = seed == 0 ? 50 : 150;
      folder.add(trial);
    }
  record::Trial pilot = trial_of("pilot:arm", 0, 0.5);
  folder.add(pilot);
  EXPECT_FALSE(analyse(kSpec, folder.directory.path()).contains("before_design"));
  record::write_document(folder.directory.path() / "design.json", "experiment_design",
                         {{"created", 100.0}, {"seeds", 3}});
  EXPECT_EQ(remarks_of(folder, kSpec), Json::array({"2 of 6 trials are older than the design."}));
  EXPECT_EQ(analyse(kSpec, folder.directory.path())["before_design"], Json({{"trials", 2}, {"of", 6}}));
}

TEST(Remarks, NameContrastsWithMorePairsThanTheDesign) {
  Folder folder;
  for (int64_t seed = 0; seed < 3; ++seed)
    for (const char* arm : {"control", "arm"}) folder.add(trial_of(arm, seed, 0.5));
  record::write_document(folder.directory.path() / "design.json", "experiment_design",
                         {{"created", -1.0}, {"seeds", 2}});
  EXPECT_EQ(remarks_of(folder, kSpec), Json::array({"'helps' has 3 pairs, but the design has 2 seeds."}));
}

TEST(Remarks, NamePairsOfDifferentTorchOrDevice) {
  const auto add = [](Folder& folder, const char* arm, const char* device, const char* torch, const char* commit) {
    record::Trial trial = trial_of(arm, 0, 0.5);
    trial.outcome["device"] = device;
    trial.outcome["versions"] = {{"torch", torch}, {"commit", commit}};
    folder.add(trial);
  };
  Folder alike, machines, versions, silent;
  add(alike, "control", "cuda:0", "2.11", "a"), add(alike, "arm", "cuda:1", "2.11", "b");
  add(machines, "control", "cuda:0", "2.11", "a"), add(machines, "arm", "cpu", "2.11", "a");
  add(versions, "control", "cpu", "2.11", "a"), add(versions, "arm", "cpu", "2.10", "a");
  add(silent, "control", "cpu", "2.11", "a"), silent.add(trial_of("arm", 0, 0.5));
  EXPECT_TRUE(remarks_of(alike, kSpec).empty()) << "commits are listed, no more";
  EXPECT_TRUE(remarks_of(silent, kSpec).empty());
  for (const Folder* folder : {&machines, &versions}) {
    ASSERT_EQ(remarks_of(*folder, kSpec).size(), 1u);
    EXPECT_TRUE(remarks_of(*folder, kSpec)[0].get<std::string>().starts_with("1 pairs of 'arm' and 'control'"));
  }
  const Json made = analyse(kSpec, alike.directory.path())["made_with"];
  EXPECT_EQ(made["devices"], Json::array({"cuda:0", "cuda:1"}));
  EXPECT_EQ(made["versions"].size(), 2u);
  EXPECT_EQ(analyse(kSpec, silent.directory.path())["made_with"]["trials_without_versions"], 1);
}

}  // namespace remarks_test
}  // namespace faultline::experiment
