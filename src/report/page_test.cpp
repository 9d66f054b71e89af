#include <gtest/gtest.h>

#include <fstream>

#include "base/complaint.h"
#include "base/error.h"
#include "base/files/temporary_folder.h"
#include "report/record.h"

namespace faultline::report {
namespace page_test {

record::Manifest some_manifest() {
  record::Manifest manifest;
  manifest.recipe_name = "case";
  manifest.recipe = {{"command", {"eval", "--fault", "it's"}}, {"model", "default"}};
  manifest.seeds = {{"seed", 7}};
  return manifest;
}

Json evidence() {
  return {{"rules",
           {{{"name", "noise"},
             {"kind", "relative_gaussian"},
             {"sites", 2},
             {"calls", 4},
             {"elements", 100},
             {"changed", 99},
             {"survival", 1.0}}}},
          {"rows",
           {{{"rule", "noise"},
             {"operator", "aten::mm"},
             {"place", "model.layers.3.mlp.down_proj"},
             {"layer", 3},
             {"phase", "eval"},
             {"ledger", {{"calls", 4}, {"relative_rms", 0.05}}}},
            {{"rule", "noise"},
             {"operator", "aten::mm"},
             {"place", "model.layers.4.mlp.down_proj"},
             {"layer", 4},
             {"phase", "eval"},
             {"ledger", {{"calls", 4}, {"relative_rms", 0.04}}}}}},
          {"coverage",
           {{"prefill",
             {{"eval",
               {{"operators", 10},
                {"reached", 5},
                {"flops_share", 0.9},
                {"bytes_share", 0.5},
                {"not_reached", Json::array()}}}}}}}};
}

Json clean_row() {
  return {{"label", "clean"},
          {"rules", Json::array()},
          {"task", {{"accuracy", 0.625}, {"correct", 25}, {"questions", 40}, {"interval", {0.47, 0.76}}}}};
}

Json faulty_row(const std::string& label, double accuracy, double p) {
  return {{"label", label},
          {"rules", {{{"name", "noise"}, {"what", {{"kind", "relative_gaussian"}, {"strength", 0.05}}}}}},
          {"task",
           {{"accuracy", accuracy},
            {"correct", 5},
            {"questions", 40},
            {"interval", {0.05, 0.26}},
            {"only_clean_right", 20},
            {"only_faulty_right", 0},
            {"p_mcnemar", p}}},
          {"evidence", evidence()},
          {"complaints", Json::array()}};
}

class Page : public testing::Test {
 protected:
  std::filesystem::path write_eval(const Json& rows, const std::vector<Json>& events = {}) {
    record::RunDirectory run = record::RunDirectory::create(folder_.path(), some_manifest());
    for (const Json& event : events) run.events().append(event);
    run.events().flush_step();
    run.write_summary({.results = {{"kind", "eval"}, {"rows", rows}}});
    return run.path();
  }
  static std::string page_of(const std::filesystem::path& path) { return page({load_record(path)}); }

  TemporaryFolder folder_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(Page, SaysTheVerdictOfAnEvaluationFirst) {
  const std::string html = page_of(write_eval({clean_row(), faulty_row("noise 0.05", 0.125, 1e-6)}));
  EXPECT_TRUE(has(html, "Under the fault the model lost accuracy."));
  EXPECT_TRUE(has(html, "noise 0.05 costs accuracy: 62.5 % → 12.5 % (-50.0 points, p &lt; 0.0001 after Holm)"));
  EXPECT_LT(html.find("Under the fault"), html.find("<svg"));
  EXPECT_TRUE(has(html, "faultline eval --fault &#39;it&#39;\\&#39;&#39;s&#39;"));
  EXPECT_TRUE(has(html, "mlp.down_proj · eval"));  // the map's row
}

// A row of 12 questions: 9 right when clean, some lost and some won under the fault.
Json row_of_twelve(const std::string& label, int lost, int won, double p) {
  Json row = label == "clean" ? clean_row() : faulty_row(label, 0, p);
  const int right = 9 - lost + won;
  row["task"].update({{"accuracy", right / 12.0}, {"correct", right}, {"questions", 12}});
  if (label != "clean") row["task"].update({{"only_clean_right", lost}, {"only_faulty_right", won}});
  return row;
}

TEST_F(Page, CallsADifferenceThatIsNotShownInconclusiveAndSaysHowManyQuestionsItTakes) {
  const Json clean = row_of_twelve("clean", 0, 0, 1);
  const std::string html = page_of(write_eval({clean, row_of_twelve("weak", 6, 1, 0.125)}));
  EXPECT_TRUE(has(html, "Inconclusive, too few questions: -41.7 points, p = 0.12; use --limit 24.")) << html;
  EXPECT_TRUE(has(html,
                  "weak: inconclusive, too few questions: 75.0 % → 33.3 % (-41.7 points, p = 0.12 after Holm); "
                  "use --limit 24"));
  EXPECT_FALSE(has(html, "could be shown"));
  EXPECT_FALSE(has(html, "class=\"verdict bad\""));
  EXPECT_TRUE(
      has(page_of(write_eval({clean, row_of_twelve("weak", 1, 1, 1)})), "The accuracy is the same under the fault"));
}

TEST_F(Page, CorrectsForTheNumberOfFaults) {
  // 0.03 alone would pass; three of them do not.
  const std::string html = page_of(
      write_eval({clean_row(), faulty_row("a", 0.4, 0.03), faulty_row("b", 0.4, 0.03), faulty_row("c", 0.4, 0.03)}));
  EXPECT_TRUE(has(html, "Inconclusive for all 3 faults, too few questions: up to -22.5 points, p = 0.09; use --limit"));
}

TEST_F(Page, ShowsNoNumberWithoutEvidence) {
  Json complaining = faulty_row("complaining", 0.12345, 1e-6), bare = faulty_row("bare", 0.54321, 1e-6);
  Json old = faulty_row("old", 0.23456, 1e-6);
  complaining["complaints"] =
      to_json(std::vector<Complaint>{{ComplaintCode::kNeverFired, "noise", "", "rule 'noise' never fired at all"}});
  old["complaints"] = {"rule 'noise' never fired"};  // of before complaints had codes
  bare.erase("evidence");
  const std::string html = page_of(
      write_eval({clean_row(), complaining, old, bare},
                 {{{"kind", "answer"}, {"row", "clean"}, {"id", "q1"}, {"reward", 1}, {"text", "right words"}},
                  {{"kind", "answer"}, {"row", "bare"}, {"id", "q1"}, {"reward", 0}, {"text", "unproven words"}}}));
  EXPECT_FALSE(has(html, "12.3 %"));
  EXPECT_FALSE(has(html, "23.5 %"));
  EXPECT_FALSE(has(html, "54.3 %"));
  EXPECT_FALSE(has(html, "unproven words"));
  EXPECT_TRUE(has(html, "rule &#39;noise&#39; never fired</p>"));
  EXPECT_TRUE(has(html, "never fired at all</p>"));
  EXPECT_FALSE(has(html, "never_fired")) << "the code is for programs";
  EXPECT_TRUE(has(html, "No fault is proven"));
  EXPECT_TRUE(has(html, "class=\"verdict doubt\""));
}

TEST_F(Page, CountsNoUnprovenFaultAmongThoseItCorrectsFor) {
  Json bare = faulty_row("bare", 0.4, 0.03);
  bare.erase("evidence");
  const std::string html = page_of(write_eval({clean_row(), faulty_row("proven", 0.4, 0.03), bare}));
  EXPECT_TRUE(has(html, "p = 0.03 after Holm")) << html.substr(html.find("after Holm") - 60, 80);
}

TEST_F(Page, ShowsAnswersThatChanged) {
  const std::string html =
      page_of(write_eval({clean_row(), faulty_row("f", 0.125, 1e-6)},
                         {{{"kind", "answer"}, {"row", "clean"}, {"id", "q1"}, {"reward", 1}, {"text", "#### 4"}},
                          {{"kind", "answer"}, {"row", "f"}, {"id", "q1"}, {"reward", 0}, {"text", "banana"}}}));
  EXPECT_TRUE(has(html, "banana"));
  EXPECT_TRUE(has(html, "1 of 1 questions were judged differently"));
}

TEST_F(Page, HostileStringsStayText) {
  const std::string evil =
      "\"><script>alert(1)</script><img src=x onerror=alert(2)>\x01\x1B[2J" + std::string(5'000'000, 'A');
  Json row = faulty_row(evil, 0.1, 1e-6);
  row["rules"][0]["what"]["kind"] = evil;
  row["evidence"]["rows"][0]["place"] = evil;
  row["evidence"]["rules"][0]["name"] = evil;
  row["evidence"]["coverage"] = {
      {evil, {{evil, {{"operators", 1}, {"not_reached", {{{"operator", evil}, {"why", evil}}}}}}}}};
  const std::string html = page_of(write_eval(
      {clean_row(), row}, {{{"kind", "answer"}, {"row", "clean"}, {"id", evil}, {"reward", 1}, {"text", evil}},
                           {{"kind", "answer"}, {"row", evil}, {"id", evil}, {"reward", 0}, {"text", evil}}}));
  EXPECT_FALSE(has(html, "<script"));
  EXPECT_FALSE(has(html, "<img"));
  EXPECT_FALSE(has(html, "\x1B"));
  EXPECT_LT(html.size(), 300'000U);
  EXPECT_TRUE(has(html, "default-src &#39;none&#39;") || has(html, "default-src 'none'"));
}

TEST_F(Page, SurvivesWrongTypesEverywhere) {
  for (const Json& odd : {Json(), Json(3), Json("x"), Json::array({1, 2}), Json{{"a", 1}}, Json("NaN")}) {
    Json row = faulty_row("f", 0.5, 0.5);
    for (const char* key : {"label", "rules", "task", "evidence", "complaints"}) {
      Json changed = row;
      changed[key] = odd;
      EXPECT_TRUE(has(page_of(write_eval({clean_row(), changed})), "</html>"));
    }
    for (const char* key : {"rules", "rows", "coverage"}) {
      Json changed = row;
      changed["evidence"][key] = odd;
      EXPECT_TRUE(has(page_of(write_eval({clean_row(), changed, odd})), "</html>"));
    }
    EXPECT_TRUE(has(page_of(write_eval(odd)), "</html>"));
  }
}

TEST_F(Page, SaysWhatIsMissing) {
  const std::filesystem::path path = write_eval({clean_row()}, {{{"kind", "answer"}}});
  std::ofstream(path / "events.jsonl", std::ios::app) << "{\"v\":1,\"n\":1,\"ki";
  EXPECT_TRUE(has(page_of(path), "The last line of events.jsonl is torn"));
  std::filesystem::remove(path / "summary.json");
  EXPECT_TRUE(has(page_of(path), "There is no summary.json"));
  std::filesystem::remove(path / "events.jsonl");
  EXPECT_TRUE(has(page_of(path), "There is no events.jsonl"));
  std::ofstream(path / "manifest.json") << "{}";
  EXPECT_THROW(page_of(path), UsageError);  // nothing of it is left
}

TEST_F(Page, AnEditedSummaryIsRefusedAndSaid) {
  const std::filesystem::path path = write_eval({clean_row()});
  std::ifstream in(path / "summary.json");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  text.replace(text.find("0.625"), 5, "0.925");
  std::ofstream(path / "summary.json") << text;
  const std::string html = page_of(path);
  EXPECT_TRUE(has(html, "seal"));
  EXPECT_FALSE(has(html, "92.5 %"));
}

TEST_F(Page, ShowsARecordOfAnUnknownKind) {
  record::RunDirectory run = record::RunDirectory::create(folder_.path(), some_manifest());
  run.write_summary({.results = {{"kind", "divination"}, {"omens", {1, 2}}}});
  const std::string html = page_of(run.path());
  EXPECT_TRUE(has(html, "A record of kind &#39;divination&#39;"));
  EXPECT_TRUE(has(html, "omens[1]"));
}

TEST_F(Page, ComparesSeveralRuns) {
  const auto a = load_record(write_eval({clean_row()})), b = load_record(write_eval({clean_row()}));
  const std::string html = page({a, b});
  EXPECT_TRUE(has(html, "2 runs side by side"));
  EXPECT_TRUE(has(html, "href=\"#run-2\""));
  EXPECT_TRUE(has(html, "The recipes are the same."));
}

TEST_F(Page, RefusesWhatIsNoRecord) {
  EXPECT_THROW(load_record(folder_.path()), UsageError);
  EXPECT_THROW(load_record(folder_.path() / "nowhere"), UsageError);
}

}  // namespace page_test
}  // namespace faultline::report
