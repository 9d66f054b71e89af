// Rules on what a command left in its trial's folder, on files that are whole, broken and hostile.
#include "triage/trial_rules.h"

#include <gtest/gtest.h>

#include "base/files/file.h"
#include "base/files/temporary_folder.h"

namespace faultline::triage {
namespace trial_rules_test {

std::string refused_rules(const std::string& yaml) {
  try {
    (void)validate(parse_yaml(yaml, "recipe.yaml"), with_rule_keys(Schema::map()));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TrialRules rules_of(const std::string& yaml) {
  return read_rules(rules_as_given(validate(parse_yaml(yaml, "recipe.yaml"), with_rule_keys(Schema::map()))));
}

// What rules say of a folder with this one file.
RuleFindings findings_of(const std::string& yaml, const std::string& name, const std::string& content) {
  const TemporaryFolder folder;
  std::filesystem::create_directories((folder.path() / name).parent_path());
  write_file_atomically(folder.path() / name, content);
  return apply(rules_of(yaml), folder.path());
}
std::string wrong_of(const std::string& rule, const std::string& content, const std::string& file = "m.jsonl") {
  return findings_of("metrics: [{file: " + file + ", metric: loss" + rule + "}]", file, content).wrong;
}

TEST(MetricRules, SayWhatIsWrongAndWhere) {
  const std::string rows = "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": 12}\n{\"step\": 3, \"loss\": 0.5}\n";
  EXPECT_EQ(wrong_of("", rows), "");
  EXPECT_EQ(wrong_of(", wrong_if: {above: 10}", rows), "m.jsonl:2: loss is 12, above 10");
  EXPECT_EQ(wrong_of(", wrong_if: {above: 12}", rows), "");
  EXPECT_EQ(wrong_of(", wrong_if: {below: 1}", rows), "m.jsonl:3: loss is 0.5, below 1");
  EXPECT_EQ(wrong_of(", at: last, wrong_if: {above: 10}", rows), "");
  EXPECT_EQ(wrong_of(", at: last, wrong_if: {below: 1}", rows), "m.jsonl:3: loss is 0.5, below 1");
  EXPECT_EQ(wrong_of(", at: 2, wrong_if: {above: 10}", rows), "m.jsonl:2: loss is 12, above 10");
  EXPECT_EQ(wrong_of(", at: 1, wrong_if: {above: 10}", rows), "");
  EXPECT_EQ(wrong_of(", at: 4", rows), "m.jsonl: no record of step 4 holds loss");
  EXPECT_EQ(wrong_of(", at: 4, wrong_if: {missing: false}", rows), "");
  EXPECT_EQ(wrong_of(", at: 3, step_key: loss", rows), "m.jsonl: no record of loss 3 holds loss");
}

TEST(MetricRules, FindNumbersThatAreNotFiniteHoweverTheyAreWritten) {
  for (const char* value : {"NaN", "Infinity", "-Infinity", "\"NaN\"", "\"nan\"", "\"-inf\"", "null", "[]"}) {
    const std::string line = std::string("{\"name\": \"a NaN \\\" NaN\", \"loss\": ") + value + "}\n";
    EXPECT_NE(wrong_of("", "{\"loss\": 1}\n" + line).find("m.jsonl:2: "), std::string::npos) << value;
  }
  for (const char* value : {"nan", "NaN", "inf", "-inf", "1e999"})
    EXPECT_NE(wrong_of("", std::string("step,loss\n1,2\n2,") + value + "\n", "m.csv").find("which is not finite"),
              std::string::npos)
        << value;
  EXPECT_EQ(wrong_of(", wrong_if: {not_finite: false}", "{\"loss\": NaN}\n"), "");
  EXPECT_EQ(wrong_of("", "{\"name\": \"NaN\", \"loss\": 1}\n"), "");
}

TEST(MetricRules, ReadNestedKeysAndTables) {
  const auto of = [](const std::string& metric, const std::string& line) {
    return findings_of("metrics: [{file: m.jsonl, metric: " + metric + "}]", "m.jsonl", line).wrong;
  };
  EXPECT_EQ(of("train.loss", "{\"train\": {\"loss\": 1}}\n"), "");
  EXPECT_EQ(of("train.loss", "{\"train.loss\": 1}\n"), "");
  EXPECT_EQ(of("train.loss", "{\"train\": 3}\n"), "m.jsonl: no record holds train.loss");
  EXPECT_EQ(wrong_of("", "\xEF\xBB\xBFstep,\"loss\"\r\n1,\"2.5\"\r\n2,\r\nstep,loss\r\n3,1\r\n", "m.csv"), "");
  EXPECT_EQ(wrong_of(", wrong_if: {above: 2}", "step,loss\n1,2.5\n", "m.csv"), "m.csv:2: loss is 2.5, above 2");
  EXPECT_EQ(wrong_of("", "step,loss\n1,\n", "m.csv"), "m.csv: no record holds loss");  // an empty cell is no value
  EXPECT_EQ(wrong_of("", "a/b,\"x, y\"\n1,2\n", "sub/m.csv"), "sub/m.csv: no record holds loss");
}

TEST(MetricRules, AnswerAFileThatCannotBeJudgedWithASentence) {
  const auto says = [](const std::string& content, const std::string& sentence, const std::string& file = "m.jsonl") {
    EXPECT_NE(wrong_of("", content, file).find(sentence), std::string::npos) << wrong_of("", content, file);
  };
  says("{\"loss\": 1}\nloss 2\n{\"loss\": 1}\n", "m.jsonl:2: not valid JSON");
  says("[1]\n", "m.jsonl:1: a line must hold one JSON object");
  says("{\"loss\": \"abc\"}\n", "m.jsonl:1: loss is \"abc\", which is no number");
  says("{\"loss\": true}\n", "which is no number");
  says("{\"loss\": 1, \"x\": \"\xff\"}\n", "m.jsonl:1: not UTF-8");
  says("step,loss\n1,2,3\n", "m.csv:2: the row has 3 cells, the header 2", "m.csv");
  says("step,loss\n1,abc\n", "m.csv:2: loss is \"abc\", which is no number", "m.csv");
  says("", "m.jsonl: no record holds loss");
  says(std::string(kMaxMetricsLine + 1, ' ') + "\n", "m.jsonl:1: a line longer than 1024 KiB");
  says(std::string(200, '[') + "\n", "nested deeper");
  const TemporaryFolder folder;
  const TrialRules rules = rules_of("metrics: [{file: m.jsonl, metric: loss}]");
  EXPECT_EQ(apply(rules, folder.path()).wrong, "m.jsonl: the trial left no such file in its folder");
  EXPECT_EQ(
      apply(rules_of("metrics: [{file: m.jsonl, metric: loss, wrong_if: {missing: false}}]"), folder.path()).wrong, "");
  std::filesystem::create_directory(folder.path() / "m.jsonl");
  EXPECT_EQ(apply(rules, folder.path()).wrong, "m.jsonl: no regular file, but a folder");
  std::filesystem::remove(folder.path() / "m.jsonl");
  std::filesystem::create_symlink("/etc/hostname", folder.path() / "m.jsonl");
  EXPECT_EQ(apply(rules, folder.path()).wrong, "m.jsonl: no regular file, but a link");
}

TEST(MetricRules, LeaveOutALineThatWasTornAndSaySo) {
  const std::string whole = "{\"loss\": 1}\n{\"loss\": 2}";
  for (size_t size = 13; size < whole.size(); ++size) {
    const RuleFindings cut = findings_of("metrics: [{file: m.jsonl, metric: loss}]", "m.jsonl", whole.substr(0, size));
    EXPECT_EQ(cut.wrong, "") << size;
    EXPECT_EQ(cut.json["metrics"][0]["values"], 1) << size;
    EXPECT_NE(cut.json["metrics"][0]["note"].get<std::string>().find("torn"), std::string::npos) << size;
  }
  const RuleFindings all = findings_of("metrics: [{file: m.jsonl, metric: loss}]", "m.jsonl", whole);
  EXPECT_EQ(all.json["metrics"][0]["values"], 2);
  EXPECT_EQ(all.json["metrics"][0]["note"], "");
}

TEST(MetricRules, RefuseWhatCannotBeMeant) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"metrics: [{file: m.txt, metric: loss}]", "ends in no format that is read"},
      {"metrics: [{file: ../m.csv, metric: loss}]", "no file within the trial's folder"},
      {"metrics: [{file: /m.csv, metric: loss}]", "no file within the trial's folder"},
      {"metrics: [{file: m.csv}]", "metric"},
      {"metrics: [{file: m.csv, metric: loss, wrong_if: {abov: 3}}]", "did you mean 'above'"},
      {"metrics: [{file: m.csv, metric: loss, wrong_if: {above: 1, below: 2}}]", "exchange the two"},
      {"metrics: [{file: m.csv, metric: loss, wrong_if: {not_finite: false, missing: false}}]", "decides nothing"},
      {"metrics: [{file: m.csv, metric: loss, at: first}]", "at"},
      {"same_between_trials: [../x]", "same_between_trials"},
      {"fault_evidence: maybe", "fault_evidence"},
  };
  for (const auto& [yaml, says] : cases)
    EXPECT_NE(refused_rules(yaml).find(says), std::string::npos) << yaml << ": " << refused_rules(yaml);
}

TEST(MetricRules, AreToldInADryRun) {
  const auto lines = describe(rules_of(
      "metrics: [{file: m.csv, metric: loss, at: 7, wrong_if: {above: 3}}]\nsame_between_trials: [w.bin, {file: m.csv, "
      "metric: loss}]\nfault_evidence: required"));
  EXPECT_EQ(lines.at(0), "metrics: wrong if loss of m.csv (step 7) is not finite or missing or above 3");
  EXPECT_EQ(lines.at(1), "same_between_trials: w.bin");
  EXPECT_EQ(lines.at(2), "same_between_trials: m.csv: loss");
  EXPECT_EQ(lines.size(), 4u);
  EXPECT_TRUE(describe(rules_of("{}")).empty());
}

// --- what must be the same

std::string digest_of(const std::string& what, const std::string& file, const std::string& content) {
  return findings_of("same_between_trials: [" + what + "]", file, content).json["repeated"][0]["digest"];
}

TEST(Repetitions, HaveADigestOfBytesOrOfValues) {
  EXPECT_EQ(digest_of("w.bin", "w.bin", "abc"), digest_of("w.bin", "w.bin", "abc"));
  EXPECT_NE(digest_of("w.bin", "w.bin", "abc"), digest_of("w.bin", "w.bin", "abd"));
  EXPECT_NE(digest_of("w.bin", "w.bin", ""), "");
  const std::string loss = "{file: m.jsonl, metric: loss}";
  const auto values = [&](const std::string& lines) { return digest_of(loss, "m.jsonl", lines); };
  EXPECT_EQ(values("{\"loss\": 1, \"t\": 1}\n{\"loss\": NaN}\n"),
            values("{\"loss\": 1.0, \"t\": 2}\n{\"loss\": \"nan\"}\n"));
  EXPECT_NE(values("{\"loss\": 1}\n{\"loss\": 2}\n"), values("{\"loss\": 2}\n{\"loss\": 1}\n"));
  EXPECT_NE(values("{\"loss\": 1}\n"), values("{\"loss\": 1}\n{\"loss\": 1}\n"));
  EXPECT_NE(values("{\"loss\": 1}\n"), values("{\"loss\": 1.0000000000000002}\n"));
}

TEST(Repetitions, ThatHaveNoneAreWrong) {
  EXPECT_NE(findings_of("same_between_trials: [a.bin]", "b.bin", "").wrong.find("no such file"), std::string::npos);
  EXPECT_EQ(findings_of("same_between_trials: [{file: m.jsonl, metric: loss}]", "m.jsonl", "{}\n").wrong,
            "m.jsonl: no record holds loss");
}

std::vector<RecordedTrial> trials_with(const std::vector<std::string>& digests) {
  std::vector<RecordedTrial> trials;
  for (size_t i = 0; i < digests.size(); ++i) {
    RecordedTrial trial{"baseline", static_cast<int64_t>(i), 1, {}, ""};
    trial.result.verdict = digests[i].empty() ? TrialVerdict::kFail : TrialVerdict::kPass;
    trial.result.outcome = digests[i].empty() ? "crashed" : "clean";
    trial.result.result = {{"repeated", {{{"name", "w"}, {"digest", digests[i]}}}}};
    trials.push_back(trial);
  }
  return trials;
}
std::string outcomes_of(const std::vector<std::string>& digests) {
  std::string all;
  for (const RecordedTrial& trial : judge_repetitions(trials_with(digests))) all += trial.result.outcome + " ";
  return all;
}

TEST(Repetitions, DifferFromWhatMostSay) {
  EXPECT_EQ(outcomes_of({"a", "a", "a"}), "clean clean clean ");
  EXPECT_EQ(outcomes_of({"b", "a", "a"}), "differs clean clean ");
  EXPECT_EQ(outcomes_of({"a", "", "b", "a"}), "clean crashed differs clean ");
  const auto judged = judge_repetitions(trials_with({"b", "a", "a"}));
  EXPECT_EQ(judged[0].result.verdict, TrialVerdict::kFail);
  EXPECT_EQ(judged[0].result.severity, "workload_failed");
  EXPECT_EQ(judged[0].result.sentence, "w: digest b, where 2 of 3 trials of the cell have a");
}

TEST(Repetitions, OfWhichAsManySayOneThingAsAnotherDifferFromTheEarliestAndSaySo) {
  EXPECT_EQ(outcomes_of({"b", "a"}), "clean differs ");
  EXPECT_EQ(outcomes_of({"b", "a", "c"}), "clean differs differs ");
  const std::string sentence = judge_repetitions(trials_with({"b", "a"}))[1].result.sentence;
  EXPECT_NE(sentence.find("which of them is wrong cannot be told"), std::string::npos) << sentence;
}

TEST(Repetitions, AreOfOneCellAndSurviveAnyAnswer) {
  auto trials = trials_with({"a", "b"});
  trials[1].cell = "other";
  EXPECT_EQ(judge_repetitions(trials)[1].result.outcome, "clean");
  for (const Json& broken : {Json(nullptr), Json(3), Json::array(), Json({{"repeated", 3}}),
                             Json({{"repeated", {3, {{"name", 1}, {"digest", "x"}}, {{"name", "w"}}}}})}) {
    trials[1].result.result = broken;
    EXPECT_EQ(judge_repetitions(trials)[1].result.outcome, "clean");
  }
}

// --- our own tap

void put_process(const std::filesystem::path& folder, const std::string& name, bool ended = true) {
  write_file_atomically(
      folder / ("process-" + name + ".json"),
      to_json_text({{"format", 2},
                    {"ended", ended},
                    {"report", {{"rules", {{{"name", "r"}, {"calls", 3}, {"elements", 8}, {"changed", 2}}}}}}}));
}
void put_verdict(const std::filesystem::path& folder, const std::string& name, const Json& complaints,
                 const Json& script_error = nullptr) {
  write_file_atomically(
      folder / ("verdict-" + name + ".json"),
      to_json_text({{"format", 1}, {"complaints", complaints}, {"script_error", script_error}, {"whole", false}}));
}
const Json kNeverFired = {
    {{"code", "never_fired"}, {"rule", "r"}, {"place", ""}, {"sentence", "rule 'r' never fired"}}};

TEST(TapVerdict, IsSilentWhereNothingComplains) {
  const TemporaryFolder folder;
  EXPECT_TRUE(read_tap_verdict(folder.path() / "none", EvidenceUse::kRead).left_nothing());
  put_process(folder.path(), "a"), put_process(folder.path(), "b", false);
  put_verdict(folder.path(), "a", Json::array());
  const TapVerdict verdict = read_tap_verdict(folder.path(), EvidenceUse::kRequired);
  EXPECT_EQ(verdict.processes, 2);
  EXPECT_EQ(verdict.ended, 1);
  EXPECT_EQ(verdict.rules.at("r").at("calls"), 6);
  EXPECT_EQ(unproven(verdict, false), "");
}

TEST(TapVerdict, IsUnprovenWhereAComplaintHasACode) {
  const TemporaryFolder folder;
  put_process(folder.path(), "a");
  put_verdict(folder.path(), "a", kNeverFired), put_verdict(folder.path(), "run-a", kNeverFired);
  const TapVerdict verdict = read_tap_verdict(folder.path(), EvidenceUse::kRead);
  EXPECT_EQ(to_json(verdict)["codes"], Json({{"never_fired", 2}}));
  EXPECT_NE(unproven(verdict, false).find("rule 'r' never fired"), std::string::npos);
  EXPECT_NE(unproven(verdict, true), "");
  EXPECT_TRUE(read_tap_verdict(folder.path(), EvidenceUse::kIgnored).left_nothing());
}

TEST(TapVerdict, OfAScriptThatFailedByItselfOnlyFollows) {
  const TemporaryFolder folder;
  put_process(folder.path(), "a");
  put_verdict(folder.path(), "a", kNeverFired, "ValueError");
  EXPECT_EQ(unproven(read_tap_verdict(folder.path(), EvidenceUse::kRead), true), "");
  EXPECT_NE(unproven(read_tap_verdict(folder.path(), EvidenceUse::kRead), false), "");
  put_verdict(folder.path(), "b", kNeverFired);
  EXPECT_NE(unproven(read_tap_verdict(folder.path(), EvidenceUse::kRead), true), "");
}

TEST(TapVerdict, TakesDamagedAndMissingEvidenceForWhatItIs) {
  const TemporaryFolder folder;
  EXPECT_NE(unproven(read_tap_verdict(folder.path(), EvidenceUse::kRequired), false).find("no process has written"),
            std::string::npos);
  for (const char* text :
       {"", "{", "[]", "{\"format\": 9, \"complaints\": []}", "{\"format\": 1, \"complaints\": 3}"}) {
    write_file_atomically(folder.path() / "verdict-a.json", text);
    const TapVerdict verdict = read_tap_verdict(folder.path(), EvidenceUse::kRead);
    ASSERT_EQ(verdict.complaints.size(), 1u) << text;
    EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kNoEvidence);
  }
}

}  // namespace trial_rules_test
}  // namespace faultline::triage
