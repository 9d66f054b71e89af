// Records of the other kinds: training, experiment, triage, race, diagnosis.
#include <gtest/gtest.h>

#include <fstream>

#include "base/files/temporary_folder.h"
#include "record/campaign_store.h"
#include "record/document.h"
#include "report/record.h"

namespace faultline::report {
namespace kinds_test {

record::Manifest some_manifest() {
  record::Manifest manifest;
  manifest.recipe_name = "case";
  return manifest;
}

class Kinds : public testing::Test {
 protected:
  static std::string page_of(const std::filesystem::path& path) { return page({load_record(path)}); }

  TemporaryFolder folder_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(Kinds, TellsThatTheLastStepWasNotEvaluated) {
  record::Manifest manifest = some_manifest();
  manifest.recipe = {{"seed", 1}, {"dtype", "bf16"}};
  record::RunDirectory run = record::RunDirectory::create(folder_.path(), manifest);
  for (int step = 1; step <= 3; ++step)
    run.events().append({{"kind", "step"}, {"step", step}, {"metrics", {{"critic/score/mean", 0.1 * step}}}});
  run.events().append(
      {{"kind", "step"},
       {"step", 4},
       {"metrics", {{"val-core/arithmetic/acc/mean@1", 0.5}, {"faultline/val-faulty/arithmetic/acc/mean@1", 0.25}}}});
  run.events().flush_step();
  run.write_summary({.step_reached = 5, .steps_planned = 8, .step_evaluated = 4});
  const std::string html = page_of(run.path());
  EXPECT_TRUE(has(html, "The last evaluation was at step 4, not at the last step, 5"));
  EXPECT_TRUE(has(html, "The run ended after step 5 of 8."));
  EXPECT_TRUE(has(html, "under faults: faultline/val-faulty"));  // never on one line with the clean series
  EXPECT_TRUE(has(html, "clean: val-core"));
  EXPECT_TRUE(has(html, "critic/score/mean"));
  EXPECT_TRUE(has(html, "faultline train recipe.json --dtype bf16"));
}

TEST_F(Kinds, ShowsNoFaultyValidationWithoutALedger) {
  record::Manifest manifest = some_manifest();
  manifest.recipe = {{"faults", {{{"name", "noise"}}}}};
  record::RunDirectory run = record::RunDirectory::create(folder_.path(), manifest);
  run.events().append(
      {{"kind", "step"},
       {"step", 1},
       {"metrics", {{"val-core/arithmetic/acc/mean@1", 0.5}, {"faultline/val-faulty/arithmetic/acc/mean@1", 0.375}}}});
  run.events().flush_step();
  run.write_summary({.step_reached = 1, .steps_planned = 1, .step_evaluated = 1});
  EXPECT_FALSE(has(page_of(run.path()), "37.5 %"));
  EXPECT_TRUE(has(page_of(run.path()), "nothing proves that they happened"));
  run.write_ledger({{"rules", Json::array()}, {"complaints", Json::array()}});
  EXPECT_TRUE(has(page_of(run.path()), "37.5 %"));
}

Json contrast_of(const char* arm, double difference, int64_t pairs, double p) {
  return {{"name", arm},
          {"arm", arm},
          {"against", "none"},
          {"pairs", pairs},
          {"difference", difference},
          {"interval", {difference - 0.03, difference + 0.03}},
          {"p", p},
          {"p_holm", p},
          {"resolvable", pairs < 7 ? Json() : Json(0.04)}};
}

// With rows that an older version tested in a family of their own.
Json experiment_of(const Json& contrasts) {
  const Json against = {{"pairs", 3}, {"difference", 0.02}, {"interval", {0.01, 0.05}}, {"p", 0.01}, {"p_holm", 0.01}};
  return {{"question", "Does it help?"},
          {"control", "none"},
          {"arms", {{{"arm", "none"}, {"trials", 3}}, {{"arm", "aqn"}, {"trials", 3}, {"against_control", against}}}},
          {"contrasts", contrasts},
          {"fewest_pairs_for_holm", 7},
          {"made_with", {{"devices", {"cpu"}}, {"versions", {{{"version", "1"}, {"commit", "abc"}, {"torch", "2"}}}}}},
          {"remarks", {"12 of 72 trials are older than the design."}}};
}

TEST_F(Kinds, ShowsAnExperimentWithItsTrials) {
  record::write_document(folder_.path() / "analysis.json", "experiment",
                         experiment_of({contrast_of("aqn", 0.02, 3, 0.5),
                                        contrast_of("other", -0.05, 8, 0.02),
                                        contrast_of("third", 0.01, 8, 0.6),
                                        {{"arm", "lost"}, {"against", "none"}, {"pairs", 1}}}));
  {
    record::CampaignStore store(folder_.path() / "campaign.sqlite");
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(store.insert({.key = {"aqn", i},
                                .status = record::TrialStatus::kPass,
                                .outcome = {{"curves", {{"reward", {0.1, 0.2 + i * 0.1}}}}}}));
  }
  const std::string html = page_of(folder_.path());
  EXPECT_TRUE(has(html, "1 of 4 contrasts is significant after Holm; the others are inconclusive."));
  EXPECT_TRUE(has(html, "aqn against none: inconclusive, +2.0 points [-1.0, +5.0]"));
  EXPECT_TRUE(has(html, "3 pairs cannot be significant at Holm&#39;s first step, whatever the effect"));
  EXPECT_TRUE(has(html, "other is worse than none: -5.0 points"));
  EXPECT_TRUE(has(html, "an effect of 4.0 points would have been seen with 80 % power"));
  EXPECT_TRUE(has(html, "lost against none: too few pairs to compare."));
  EXPECT_TRUE(has(html, "12 of 72 trials are older than the design."));
  EXPECT_TRUE(has(html, "Trained on cpu with faultline 1 (commit abc), torch 2."));
  EXPECT_TRUE(has(html, "class=\"band"));
}

TEST_F(Kinds, ClaimsNothingOfAnExperimentWithoutContrasts) {
  record::write_document(folder_.path() / "analysis.json", "experiment", experiment_of(Json::array()));
  const std::string html = page_of(folder_.path());
  EXPECT_TRUE(has(html, "2 arms, described: no contrast was named, so nothing is claimed."));
  for (const char* claim : {"better", "worse", "significant", "p = 0.01"}) EXPECT_FALSE(has(html, claim)) << claim;
}

TEST_F(Kinds, ShowsATriageAndARace) {
  std::ofstream(folder_.path() / "matrix.json")
      << R"({"sentence":"the switch is to blame","disqualified":false,"cells":[{"name":"base","valid":16,"failed":9,
          "rate":0.56,"text":"9/16","clopper_pearson_95":[0.3,0.8],"mitigations":["x"]}]})";
  EXPECT_TRUE(has(page_of(folder_.path()), "the switch is to blame"));
  std::ofstream(folder_.path() / "race.json")
      << R"({"verdict":"fail","outcome":"completed","sentence":"rank 1 differs","ranks":4,"evidence":[
          {"events":{"items":[{"rank":1,"layer":7,"cause":"transport"}],"omitted":3}}]})";
  const std::string race = page_of(folder_.path() / "race.json");
  EXPECT_TRUE(has(race, "fail (completed): rank 1 differs"));
  EXPECT_TRUE(has(race, "Corruptions and whom they are put down to (4)"));
}

TEST_F(Kinds, ShowsAScanByFormatLayerAndLinear) {
  std::ofstream(folder_.path() / "scan.json") << R"({"kind":"scan","rows":[
      {"layer":1,"place":"model.layers.1","surface":"layer_output","format":"mxfp4","sqnr_db":20.0,"dead_zone":0.25},
      {"layer":1,"place":"model.layers.1.mlp.up_proj","surface":"weight","format":"mxfp4","sqnr_db":40.0},
      {"layer":0,"place":"model.layers.0","surface":"layer_output","format":"mxfp4","sqnr_db":null}],
      "suggested":{"mxfp4":{"1":0.1}}})";
  const std::string html = page_of(folder_.path() / "scan.json");
  EXPECT_TRUE(has(html, "1 number format on 3 tensors; the worst: output of model.layers.1 in mxfp4, 20.00 dB."));
  EXPECT_TRUE(has(html, "<title>mxfp4, layer 1: 0.1</title>"));
  EXPECT_TRUE(has(html, "<title>mxfp4, layer 0: 0</title>"));  // exact is no gap
  EXPECT_TRUE(has(html, "<title>mlp.up_proj, layer 1: 0.01</title>"));
  EXPECT_TRUE(has(html, "25.0 %"));
  std::ofstream(folder_.path() / "empty.json") << R"({"kind":"scan","rows":[]})";
  EXPECT_TRUE(has(page_of(folder_.path() / "empty.json"), "Nothing was scanned."));
}

TEST_F(Kinds, ShowsADiagnosisAndACampaignOfThem) {
  std::ofstream(folder_.path() / "verdict.json")
      << R"({"method":"self","verdict":"fault","candidates":[{"layer":7,"place":"layers.7.mlp","operation":"matmul",
          "kind":"deadzone","certainty":"exact","evidence":[{"relation":"linearity","violations":3,"elements":9}]}],
          "not_tested":["rope"]})";
  const std::string diagnosis = page_of(folder_.path() / "verdict.json");
  EXPECT_TRUE(has(diagnosis, "A fault: deadzone at layers.7.mlp, matmul (exact)."));
  EXPECT_TRUE(has(diagnosis, "Not tested: rope"));
  {
    record::CampaignStore store(folder_.path() / "diagnoses.sqlite");
    const Json right = {{"found", true}, {"kind", "deadzone"}, {"layer_right", true}, {"kind_right", true}};
    const Json accused = {{"found", true}, {"kind", "bias"}}, silent = {{"found", false}};
    ASSERT_TRUE(store.insert({.key = {"deadzone", 0}, .outcome = {{"planted_kind", "deadzone"}, {"self", right}}}));
    ASSERT_TRUE(store.insert({.key = {"healthy", 0}, .outcome = {{"self", silent}, {"classic", accused}}}));
  }
  const std::string campaign = page_of(folder_.path() / "diagnoses.sqlite");
  EXPECT_TRUE(has(campaign, "No false accusation in 1 diagnoses of healthy models."));  // classic does not count
  EXPECT_TRUE(has(campaign, "classic: the layer was named in 0 of 0 planted faults, the kind in 0; 1 of 1 healthy"));
  EXPECT_TRUE(has(campaign, "self: the layer was named in 1 of 1 planted faults, the kind in 1; 0 of 1 healthy"));
}

}  // namespace kinds_test
}  // namespace faultline::report
