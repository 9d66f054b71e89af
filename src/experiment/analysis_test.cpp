// The table of an experiment, from trials whose answers are known.
#include "experiment/analysis.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/stats/stats.h"
#include "experiment/known_trials.h"
#include "lab/run_evidence.h"

namespace faultline::experiment {
namespace analysis_test {

TEST(Analysis, PairsBySeedAndCorrectsOverTheDeclaredFamily) {
  Folder folder;
  for (int64_t seed = 0; seed < 8; ++seed) {
    const double luck = 0.01 * static_cast<double>(seed * seed % 5);  // shared by the arms of a seed
    folder.add(trial_of("control", seed, 0.5 + luck));
    folder.add(trial_of("better", seed, 0.53 + luck + 0.001 * static_cast<double>(seed % 2)));
    folder.add(trial_of("same", seed, 0.5 + luck + (seed % 2 == 0 ? 0.01 : -0.01)));
  }
  const Json analysis =
      analyse(spec_of({"control", "better", "same"}, {{"helps", "better", "control"}, {"differs", "same", "control"}}),
              folder.directory.path());
  const Json &helps = analysis["contrasts"][0], &differs = analysis["contrasts"][1];
  EXPECT_EQ(helps["pairs"], 8);
  EXPECT_NEAR(helps["difference"].get<double>(), 0.0305, 1e-12);
  EXPECT_DOUBLE_EQ(helps["p"].get<double>(), 2.0 / 256) << "all eight differences have one sign: 2 of 2^8";
  EXPECT_DOUBLE_EQ(helps["p_holm"].get<double>(), 4.0 / 256);
  EXPECT_GT(differs["p"].get<double>(), 0.7);
  EXPECT_LT(helps["interval"][0].get<double>(), 0.0305);
  EXPECT_GT(helps["interval"][0].get<double>(), 0.029) << "the seed's luck is gone from the differences";
}

TEST(Analysis, CountsAContrastThatCouldNotBeTestedInTheFamily) {
  Folder folder;
  for (int64_t seed = 0; seed < 8; ++seed) {
    folder.add(trial_of("control", seed, 0.5));
    folder.add(trial_of("better", seed, 0.53 + 0.001 * static_cast<double>(seed)));
  }
  folder.add(trial_of("refused", 0, 0.5));
  const Json analysis =
      analyse(spec_of({"control", "better", "refused"}, {{"a", "better", "control"}, {"b", "refused", "control"}}),
              folder.directory.path());
  EXPECT_DOUBLE_EQ(analysis["contrasts"][0]["p"].get<double>(), 2.0 / 256);
  EXPECT_DOUBLE_EQ(analysis["contrasts"][0]["p_holm"].get<double>(), 4.0 / 256) << "two were declared";
  EXPECT_FALSE(analysis["contrasts"][1].contains("p_holm"));
}

TEST(Analysis, SaysWhatWouldHaveBeenSeenAtTheLevelOfTheDecision) {
  const auto contrast = [](int64_t seeds) {
    Folder folder;
    for (int64_t seed = 0; seed < seeds; ++seed) {
      folder.add(trial_of("control", seed, 0.5));
      folder.add(trial_of("arm", seed, seed % 2 == 0 ? 0.51 : 0.5));
    }
    return analyse(spec_of({"control", "arm"}, {{"a", "arm", "control"}, {"b", "control", "arm"}}),
                   folder.directory.path())["contrasts"][0];
  };
  const Json seven = contrast(7), six = contrast(6);
  EXPECT_NEAR(seven["resolvable"].get<double>(),
              paired_t_detectable_effect(seven["sd"].get<double>(), 7, 0.8, 0.05 / 2), 1e-12);
  ASSERT_TRUE(six.contains("resolvable"));
  EXPECT_TRUE(six["resolvable"].is_null())
      << "the smallest p of six pairs is 1/32, and the first of two is judged at 1/40";
}

TEST(Analysis, TestsNothingThatNoContrastNames) {
  Folder folder;
  for (int64_t seed = 0; seed < 8; ++seed)
    for (const auto& [arm, accuracy] : {std::pair{"control", 0.5}, std::pair{"arm", 0.6}, std::pair{"other", 0.7}}) {
      record::Trial trial = trial_of(arm, seed, accuracy);
      trial.outcome["results"]["faultline/under/x/acc"] = accuracy;
      folder.add(trial);
    }
  const Json analysis = analyse(spec_of({"control", "arm", "other"}, {{"c", "other", "arm"}}), folder.directory.path());
  const Json &row = row_of(analysis, "arm"), &under = row["under"]["x"]["against_control"];
  for (const Json& one : {row["against_control"], under}) {
    EXPECT_NEAR(one["difference"].get<double>(), 0.1, 1e-12);
    EXPECT_TRUE(one.contains("interval"));
    for (const char* claim : {"p", "p_holm", "resolvable"}) EXPECT_FALSE(one.contains(claim)) << claim;
  }
}

TEST(Analysis, MeasuresTimeBySeed) {
  Folder folder;
  const auto add = [&](const char* arm, int64_t seed, const std::vector<double>& seconds) {
    record::Trial trial = trial_of(arm, seed, 0.5);
    trial.outcome["curves"]["seconds"] = seconds;
    folder.add(trial);
  };
  add("control", 0, {1, 1, 1, 1}), add("control", 1, {4});
  add("arm", 0, {1.1, 1.1}), add("arm", 1, {4.8});
  add("once", 0, {2});
  const Json analysis = analyse(spec_of({"control", "arm", "once"}, {}), folder.directory.path());
  EXPECT_EQ(row_of(analysis, "control")["seconds_a_step"]["n"], 2) << "seeds, not steps";
  EXPECT_NEAR(row_of(analysis, "control")["seconds_a_step"]["mean"].get<double>(), 2.5, 1e-12);
  const Json& overhead = row_of(analysis, "arm")["overhead"];
  EXPECT_EQ(overhead["n"], 2);
  EXPECT_NEAR(overhead["mean"].get<double>(), 0.15, 1e-12) << "10 and 20 %";
  EXPECT_LT(overhead["interval"][0].get<double>(), 0.1);
  EXPECT_TRUE(row_of(analysis, "once")["overhead"].is_null()) << "one pair has no interval";
}

TEST(Analysis, LeavesOutPairsWithoutEvidenceAndSaysSo) {
  Folder folder;
  for (int64_t seed = 0; seed < 4; ++seed) folder.add(trial_of("control", seed, 0.5));
  folder.add(trial_of("arm", 0, 0.6));
  folder.add(trial_of("arm", 1, 0.7));
  record::Trial died = trial_of("arm", 2, 0.0);
  died.status = record::TrialStatus::kFail;
  folder.add(died);
  record::Trial unproven = trial_of("arm", 3, 0.9, {9.0, 9.0, 9.0});
  unproven.status = record::TrialStatus::kError;
  folder.add(unproven);
  const Json analysis = analyse(spec_of({"control", "arm"}, {{"c", "arm", "control"}}), folder.directory.path());
  const Json row = row_of(analysis, "arm");
  EXPECT_EQ(analysis["contrasts"][0]["pairs"], 2);
  EXPECT_EQ(row["died"], 1);
  EXPECT_EQ(row["evidence_missing"], 1);
  EXPECT_NEAR(row["endpoint"]["mean"].get<double>(), 0.65, 1e-12);
  EXPECT_EQ(row["trials"], 4);
  EXPECT_EQ(row["survival"]["survived"], 2);
  EXPECT_EQ(row["survival"]["trials"], 3) << "nobody knows what the one without proof survived";
  EXPECT_NEAR(row["curves"]["loss"][0].get<double>(), 0.1, 1e-12);
  EXPECT_EQ(row["survival"]["steps_of_death"][0], 4) << "three steps were done";
}

TEST(Analysis, NamesTrialsThatAreLaterAttempts) {
  Folder folder;
  record::Trial refused = trial_of("arm", 0, 0.0);
  refused.status = record::TrialStatus::kError;
  refused.outcome = {
      {"complaints", to_json(std::vector<Complaint>{{ComplaintCode::kUnproven, "", "", "aqn: too much"}})}};
  record::Trial older = trial_of("arm", 1, 0.0);  // of before complaints had codes
  older.status = record::TrialStatus::kError;
  older.outcome = {{"complaints", {"aqn: far too much"}}};
  folder.add(older);
  folder.add(refused);
  EXPECT_EQ(
      record::CampaignStore(folder.directory.path() / "campaign.sqlite").set_errors_aside({refused.key, older.key}), 2);
  folder.add(trial_of("arm", 0, 0.7));
  folder.add(trial_of("arm", 1, 0.7));
  const Json row = row_of(analyse(spec_of({"arm"}, {}), folder.directory.path()), "arm");
  EXPECT_EQ(row["evidence_missing"], 0);
  EXPECT_EQ(row["trials"], 2);
  EXPECT_EQ(row["earlier_attempts"], Json::array({"aqn: too much", "aqn: far too much"}));
}

TEST(Lesson31OneSeed, HasNoIntervalAndNoTest) {
  Folder folder;
  folder.add(trial_of("control", 0, 0.70));
  folder.add(trial_of("arm", 0, 0.71));
  const Json analysis = analyse(spec_of({"control", "arm"}, {{"c", "arm", "control"}}), folder.directory.path());
  EXPECT_FALSE(analysis["contrasts"][0].contains("p"));
  EXPECT_FALSE(row_of(analysis, "arm")["endpoint"].contains("sd"));
}

TEST(Lesson34ByteIdenticalArms, RaiseAnAlarm) {
  Folder folder;
  folder.add(trial_of("control", 0, 0.5, {0.25, -0.5}));
  folder.add(trial_of("copied", 0, 0.5, {0.25, -0.5}));
  folder.add(trial_of("other", 0, 0.5, {0.25, -0.6}));
  folder.add(trial_of("idle", 0, 0.5, {0, 0}));
  const Json analysis = analyse(spec_of({"control", "copied", "other", "idle"}, {}), folder.directory.path());
  EXPECT_EQ(row_of(analysis, "copied")["identical_seeds"], 1);
  EXPECT_EQ(row_of(analysis, "other")["identical_seeds"], 0);
  EXPECT_EQ(row_of(analysis, "idle")["identical_seeds"], 0);
}

TEST(Lesson34ByteIdenticalArms, AreLookedForInEveryContrast) {
  Folder folder;
  folder.add(trial_of("control", 0, 0.5, {0.25, -0.5}));
  folder.add(trial_of("faulty", 0, 0.5, {0.1, 0.2}));
  record::Trial noisy = trial_of("faulty_with_noise", 0, 0.5, {0.1, 0.2});
  noisy.evidence["aqn"] = {{"changed", 1}};
  folder.add(noisy);
  record::Trial invisible = trial_of("invisible", 0, 0.5, {0.1, 0.2});
  invisible.evidence["faults"]["counts"] = {{{"phase", "rollout"}, {"changed", 0}}};
  folder.add(invisible);
  const Json contrasts = analyse(
      spec_of({"control", "faulty", "faulty_with_noise", "invisible"}, {{"a", "faulty_with_noise", "faulty"},
                                                                        {"b", "faulty", "control"},
                                                                        {"c", "faulty", "invisible"},
                                                                        {"d", "invisible", "faulty_with_noise"}}),
      folder.directory.path())["contrasts"];
  EXPECT_EQ(contrasts[0]["identical_seeds"], 1);
  EXPECT_EQ(contrasts[1]["identical_seeds"], 0);
  EXPECT_EQ(contrasts[2]["identical_seeds"], 0) << "one of them promised to change nothing";
  EXPECT_EQ(contrasts[3]["identical_seeds"], 1) << "the promise was not the noise's";
}

TEST(Lesson34ByteIdenticalArms, RaiseNoneWhereTheArmPromisedToChangeNothing) {
  Folder folder;
  const auto with_counts = [&](const std::string& arm, int64_t changed, bool noise) {
    record::Trial trial = trial_of(arm, 0, 0.5);
    trial.evidence = {{"faults", {{"counts", {{{"phase", "rollout"}, {"changed", changed}}}}}}};
    if (noise) trial.evidence["aqn"] = {{"changed", 1}};
    folder.add(trial);
  };
  folder.add(trial_of("control", 0, 0.5));
  with_counts("invisible", 0, false);
  with_counts("without_effect", 5, false);
  with_counts("noise_without_effect", 0, true);
  const Json analysis =
      analyse(spec_of({"control", "invisible", "without_effect", "noise_without_effect"}, {}), folder.directory.path());
  EXPECT_EQ(row_of(analysis, "invisible")["identical_seeds"], 0);
  EXPECT_EQ(row_of(analysis, "without_effect")["identical_seeds"], 1);
  EXPECT_EQ(row_of(analysis, "noise_without_effect")["identical_seeds"], 1);
}

TEST(Analysis, SaysWhatWasWonBackOnlyWhereThereIsSomethingToWin) {
  Folder folder;
  for (int64_t seed = 0; seed < 3; ++seed)
    for (const auto& [arm, strong, weak] : {std::tuple{"control", 0.2, 0.59}, std::tuple{"arm", 0.3, 0.40}}) {
      record::Trial trial = trial_of(arm, seed, 0.5);  // clean: 0.6
      trial.outcome["results"]["faultline/under/strong/acc"] = strong;
      trial.outcome["results"]["faultline/under/weak/acc"] = weak;
      folder.add(trial);
    }
  const Json analysis = analyse(spec_of({"control", "arm"}, {}), folder.directory.path());
  const Json& under = row_of(analysis, "arm")["under"];
  EXPECT_NEAR(under["strong"]["recovery"]["mean"].get<double>(), 0.25, 1e-12);
  EXPECT_TRUE(under["weak"]["recovery"].is_null()) << "0.19 of 0.01 points is no share";
  EXPECT_NEAR(under["weak"]["against_control"]["difference"].get<double>(), -0.19, 1e-12);
  EXPECT_TRUE(row_of(analysis, "control")["under"]["strong"]["recovery"].is_null());
}

TEST(Analysis, SeesWhereSeedsBeginWithWhatTheOnesBeforeLearnt) {
  const auto starts = [](const std::vector<double>& starts) {
    Folder folder;
    for (std::size_t seed = 0; seed < starts.size(); ++seed) {
      record::Trial trial = trial_of("control", static_cast<int64_t>(seed), 0.9);
      trial.outcome["curves"]["start"] = {{"val-core/arithmetic/acc/mean@1", starts[seed]}};
      folder.add(trial);
    }
    return analyse(spec_of({"control"}, {}), folder.directory.path());
  };
  // Of a run whose supervised steps began with the weights of the trial before.
  EXPECT_EQ(starts({30.8, 26.6, 39.9, 45.3, 53.3, 63.4, 64.6, 67.3, 73.0})["starts"]["alarm"], true);
  EXPECT_EQ(starts({30.8, 26.6, 29.9, 33.3, 28.3, 27.4, 31.6, 32.3, 29.0})["starts"]["alarm"], false);
  EXPECT_EQ(starts({1, 2, 3, 4, 5, 6})["starts"]["alarm"], true) << "p = 2/6!";
  const Json five = starts({1, 2, 3, 4, 5});
  EXPECT_EQ(five["starts"]["tested"], false) << "p = 2/5! at best: no alarm would be no finding";
  EXPECT_FALSE(five["starts"].contains("alarm"));
  EXPECT_EQ(five["remarks"],
            Json::array({"Whether the starts have a trend was not tested: it takes 6 seeds, and there are 5."}));
}

TEST(JoinedEvidence, AddsTheCountsOfParts) {
  const auto part = [](int64_t calls, const char* phase) {
    return Json{{"parts", 1},
                {"counts",
                 {{{"rule", "noise"},
                   {"phase", phase},
                   {"dtype", "bf16"},
                   {"sites", 4},
                   {"calls", calls},
                   {"active_calls", calls},
                   {"elements", 10 * calls},
                   {"selected", 10 * calls},
                   {"changed", 9 * calls},
                   {"nonzero", 0},
                   {"zeroed", 0},
                   {"nonfinite", 0},
                   {"saturated", 0}}}},
                {"forwards", {{phase, calls}}},
                {"complaints", Json::array()}};
  };
  EXPECT_EQ(lab::join_evidence(nullptr, part(3, "rollout")), part(3, "rollout"));
  const Json joined = lab::join_evidence(lab::join_evidence(part(3, "rollout"), part(4, "rollout")), part(5, "eval"));
  EXPECT_EQ(joined["parts"], 3);
  ASSERT_EQ(joined["counts"].size(), 2u);
  EXPECT_EQ(joined["counts"][0]["phase"], "eval");
  EXPECT_EQ(joined["counts"][1]["calls"], 7);
  EXPECT_EQ(joined["counts"][1]["changed"], 63);
  EXPECT_EQ(joined["counts"][1]["sites"], 4);
  EXPECT_EQ(joined["forwards"]["rollout"], 7);
}

}  // namespace analysis_test
}  // namespace faultline::experiment
