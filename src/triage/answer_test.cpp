#include "triage/answer.h"

#include <gtest/gtest.h>

namespace faultline::triage {
namespace answer_test {

std::string answer(const std::string& nonce, const std::string& verdict, const std::string& outcome) {
  return to_json_text(
      {{"nonce", nonce},
       {"result", {{"verdict", verdict}, {"outcome", outcome}, {"sentence", "s"}, {"evidence", Json::array()}}}});
}

TEST(Answer, IsTheTrialsVerdict) {
  const TrialResult pass = read_answer(answer("n", "pass", "completed"), "n");
  EXPECT_EQ(pass.verdict, TrialVerdict::kPass);
  EXPECT_EQ(pass.severity, "ok");
  EXPECT_EQ(pass.sentence, "s");
  EXPECT_EQ(read_answer(answer("n", "fail", "completed"), "n").severity, "workload_failed");
  EXPECT_EQ(read_answer(answer("n", "error", "did_not_run"), "n").severity, "setup_failed");
  EXPECT_EQ(read_answer(answer("n", "error", "hang"), "n").severity, "infrastructure_failed");
}

TEST(Answer, OfAnotherRequestIsNone) {
  const TrialResult result = read_answer(answer("old", "pass", "completed"), "new");
  EXPECT_EQ(result.verdict, TrialVerdict::kError);
  EXPECT_EQ(result.severity, "infrastructure_failed");
  EXPECT_NE(result.sentence.find("another request"), std::string::npos);
}

TEST(Answer, ThatCannotBeReadIsAnErrorWithASentence) {
  const std::string whole = answer("n", "pass", "completed");
  for (size_t size = 0; size < whole.size(); ++size) {
    const TrialResult torn = read_answer(whole.substr(0, size), "n");
    EXPECT_EQ(torn.verdict, TrialVerdict::kError) << size;
    EXPECT_FALSE(torn.sentence.empty());
  }
  for (const char* text : {"[]", "null", "{}", R"({"nonce": "n"})", R"({"nonce": "n", "result": 3})",
                           R"({"nonce": "n", "result": {"verdict": "fine", "outcome": "completed", "sentence": ""}})",
                           R"({"nonce": "n", "result": {"verdict": "pass", "outcome": "??", "sentence": ""}})",
                           R"({"nonce": "n", "result": {"verdict": "pass", "outcome": "completed", "sentence": 3}})",
                           R"({"nonce": "n", "result": {"verdict": "pass", "outcome": "completed", "sentence": ""}})",
                           R"({"nonce": "n", "result": {"verdict": "pass", "outcome": "completed", "sentence": "",
                               "evidence": [{"events": {"count": "x"}}]}})"}) {
    const TrialResult result = read_answer(text, "n");
    EXPECT_EQ(result.verdict, TrialVerdict::kError) << text;
    EXPECT_TRUE(result.result.is_null()) << text;
    EXPECT_EQ(result.severity, "infrastructure_failed");
  }
}

}  // namespace answer_test
}  // namespace faultline::triage
