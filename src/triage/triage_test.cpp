// Triage without processes: recipes, bundles, the order of trials, statistics and the search, on made-up trials.
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "base/files/file.h"
#include "base/files/temporary_folder.h"
#include "triage/bisect.h"
#include "triage/campaign.h"
#include "triage/statistics.h"
#include "trials/runner.h"

namespace faultline::triage {
namespace triage_test {

constexpr const char* kCells =
    "cells: [{name: baseline}, {name: flush, mitigations: [gdr-flush]}, {name: ll, mitigations: [ll-protocol]}]";

Plan plan_of(const std::string& yaml) { return read_plan(parse_yaml(yaml, "recipe.yaml"), "recipe", "."); }
Plan small(const std::string& more = "") {
  return plan_of("trials: 16\nsteps: 5\n" + more + std::string("\n") + kCells);
}

std::string refused(const std::string& yaml) {
  try {
    (void)plan_of(yaml);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Recipe, RefusesWhatCannotBeRun) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"cells: [{name: a, mitigatons: []}]", "did you mean 'mitigations'"},
      {"trials: 4\ncells: [{name: a, mitigations: [gdr-flsh]}]", "did you mean 'gdr-flush'"},
      {"cells: [{name: a, environment: nccl-lg}]", "did you mean 'nccl-log'"},
      {"cells: [{name: a, mitigations: [ll-protocol, simple-protocol]}]",
       "cell 'a': NCCL_PROTO is 'LL' in 'll-protocol' and 'Simple' in 'simple-protocol'"},
      {"cells: [{name: a, mitigations: [ll-protocol], extra_env: {NCCL_PROTO: Simple}}]", "in 'extra_env'"},
      {"cells: [{name: ../a}]", "no safe name"},
      {"cells: [{name: .a}]", "no safe name"},
      {"cells: [{name: a/b}]", "no safe name"},
      {"cells: [{name: a}, {name: a}]", "two cells"},
      {"extra_env: {RANK: '1'}\ncells: [{name: a}]", "belongs to the launcher"},
      {"cells: [{name: a, extra_env: {TORCHELASTIC_RESTART_COUNT: '1'}}]", "belongs to the launcher"},
      {"cells: [{name: a, extra_env: {'A B': '1'}}]", "no name of an environment variable"},
      {"schema_version: 2\ncells: [{name: a}]", "update faultline"},
      {"workload: trainer\ncells: [{name: a}]", "workload"},
      {"workload_config: {fsdp_shrd_size: 4}\ncells: [{name: a}]", "workload_config"},
      {"workload_config: {mode: ddp, fsdp_shard_size: 4}\ncells: [{name: a}]", "not read here"},
      {"confound: {baseline_cell: bas}\ncells: [{name: base}]", "did you mean 'base'"},
      {"ranks: 3\ncells: [{name: a}]", "does not divide into 3 ranks"},
      {"transport: nccl\ncells: [{name: a}]", "use device: cuda"},
      {"transport: gloo\ndevice: cuda\ncells: [{name: a}]", "use threads or nccl"},
      {"cells: [{name: a, environment: {docker: image}}]", "starts no container"},
      {"workload_config: {gpu_max_hw_queues: 0}\ncells: [{name: a}]", "from 1 to 1024"},
      {"workload_config: {gpu_max_hw_queues: 4}\nextra_env: {GPU_MAX_HW_QUEUES: '2'}\ncells: [{name: a}]",
       "extra_env at recipe.yaml:2"},
      {"custom_patterns: []\ncells: [{name: a}]", "workload: command only"},
      {"workload: command\ncells: [{name: a}]", "chooses none; give it behind --"},
      {"mode: probe\ntrials: 1\nmitigation_axis: [none]\ndiagnostic_axis: [none]", "give it behind --"},
      {"mode: probe\ntrials: 1\nmitigation_axs: [none]\ndiagnostic_axis: [none]", "did you mean 'mitigation_axis'"},
      {"cells: []", "cells"},
  };
  for (const auto& [yaml, says] : cases)
    EXPECT_NE(refused(yaml).find(says), std::string::npos) << yaml << ": " << refused(yaml);
  EXPECT_NE(refused("cells: [{name: a}]\nworkload_config: {dtyp: bf16}").find("recipe.yaml:2"), std::string::npos);
}

TEST(Recipe, CellsStackTheirConfigurationsAndEnvironments) {
  const Plan plan = plan_of(
      "trials: 3\nsteps: 5\nworkload_config: {mode: fsdp, dtype: float32}\nextra_env: {NCCL_A: '1'}\n"
      "cells: [{name: baseline}, {name: b, steps: 7, trials: 2, mitigations: [gdr-flush], environment: nccl-log, "
      "extra_env: {NCCL_A: '2'}, workload_config: {dtype: bfloat16}}]");
  EXPECT_EQ(plan.cells[1].race.dtype, at::kBFloat16);
  EXPECT_EQ(plan.cells[1].race.verify_iterations, 7);
  EXPECT_EQ(plan.cells[0].race.verify_iterations, 5);
  EXPECT_EQ(plan.cells[1].variables.at("NCCL_A"), "2");
  EXPECT_EQ(plan.cells[1].variables.at("NCCL_DEBUG"), "INFO");
  EXPECT_EQ(plan.cells[1].variables.at("NCCL_GDR_FLUSH_DISABLE"), "0");
  EXPECT_EQ(plan.total_trials(), 5);
}

std::string line_with(const Plan& plan, const std::string& text) {
  for (const std::string& line : dry_run_lines(plan))
    if (line.find(text) != std::string::npos) return line;
  return "";
}

TEST(Recipe, VerifyIterationsDecideOverStepsAndSaySo) {
  const Plan same = plan_of("steps: 7\nworkload_config: {verify_iterations: 7}\ncells: [{name: a}]");
  EXPECT_EQ(same.cells[0].race.verify_iterations, 7);
  EXPECT_TRUE(same.cells[0].notes.empty());
  const Plan other = plan_of("steps: 7\nworkload_config: {verify_iterations: 8}\ncells: [{name: a}]");
  EXPECT_EQ(other.cells[0].race.verify_iterations, 8);
  ASSERT_EQ(other.cells[0].notes.size(), 1u);
  EXPECT_EQ(other.cells[0].notes[0],
            "8 iterations: verify_iterations at recipe.yaml:2 decides over steps at recipe.yaml:1");
}

TEST(Recipe, VariablesOfTheWholeRecipeAreTheGroundThatCellsBuildOn) {
  const Plan plan = plan_of(
      "extra_env: {NCCL_PROTO: Simple, NCCL_A: '1'}\n"
      "cells: [{name: baseline}, {name: ll, mitigations: [ll-protocol]}, {name: b, extra_env: {NCCL_A: '2'}}]");
  EXPECT_EQ(plan.cells[0].variables, (Environment{{"NCCL_PROTO", "Simple"}, {"NCCL_A", "1"}}));
  EXPECT_EQ(plan.cells[1].variables, (Environment{{"NCCL_PROTO", "LL"}, {"NCCL_A", "1"}}));
  EXPECT_EQ(plan.cells[2].variables, (Environment{{"NCCL_PROTO", "Simple"}, {"NCCL_A", "2"}}));
}

TEST(Aorta, HardwareQueuesAreAVariableOfTheTrial) {
  const Plan plan = plan_of(
      "workload_config: {gpu_max_hw_queues: 4}\n"
      "cells: [{name: baseline-a}, {name: b, workload_config: {gpu_max_hw_queues: 8}}, {name: c, mitigations: "
      "[gpu_max_hw_queues_2]}]");
  EXPECT_EQ(plan.cells[0].variables.at("GPU_MAX_HW_QUEUES"), "4");
  EXPECT_EQ(plan.cells[1].variables.at("GPU_MAX_HW_QUEUES"), "8");
  EXPECT_EQ(plan.cells[2].variables.at("GPU_MAX_HW_QUEUES"), "2");
  EXPECT_NE(line_with(plan, "note: gpu_max_hw_queues"), "");
}

TEST(Aorta, TheBaselineIsFoundByItsNameOrByWhatItLeavesAlone) {
  EXPECT_EQ(plan_of("cells: [{name: a, mitigations: [xnack]}, {name: baseline-x}]").baseline, 1u);
  EXPECT_EQ(plan_of("cells: [{name: a, mitigations: [xnack]}, {name: b, mitigations: [none]}]").baseline, 1u);
  EXPECT_EQ(plan_of("cells: [{name: a, mitigations: [xnack]}]").baseline, 0u);
}

constexpr const char* kProbe =
    "mode: probe\ntrials: 3\nmitigation_axis: [none, tf32_off]\ndiagnostic_axis: [none, xnack]\n";
Plan probe_of(const std::string& more = "") {
  const std::vector<std::string> command = {"true", "--flag"};
  return read_plan(parse_yaml(kProbe + more, "recipe.yaml"), "recipe", ".", command);
}

TEST(Aorta, AProbeIsACommandWithTheProductOfTwoAxes) {
  const Plan plan = probe_of();
  ASSERT_EQ(plan.cells.size(), 4u);
  EXPECT_EQ(plan.baseline_cell().name, "none-none");
  EXPECT_EQ(plan.cells[3].name, "tf32_off-xnack");
  EXPECT_EQ(plan.cells[3].variables, (Environment{{"DISABLE_TF32", "1"}, {"HSA_XNACK", "1"}}));
  EXPECT_EQ(plan.total_trials(), 12);
  EXPECT_EQ(plan.timeout_per_trial, 0);
  EXPECT_FALSE(plan.warmup_trial);
  EXPECT_NE(make_request(plan, plan.cells[0], 0).fingerprint(), make_request(plan, plan.cells[0], 1).fingerprint());
}

TEST(Aorta, KeysThatDoNothingHereLeaveANote) {
  for (const char* key :
       {"step_time_regex: 'x'", "collect_paths: [a]", "hang_window_sec: 30", "hang_grace_period_at_start: 0",
        "tier3_vram_growth: false", "redaction: {scrub_paths: true}"}) {
    const std::string name = std::string(key).substr(0, std::string(key).find(':'));
    EXPECT_NE(line_with(probe_of(key), "note: " + name + " does nothing here"), "") << key;
  }
  EXPECT_EQ(line_with(probe_of("collect_paths: []"), "collect_paths"), "");
}

TEST(Aorta, WhatTheirDeterminismRecipeSaysIsARace) {
  const Plan plan = plan_of(
      "workload: llm_determinism\nsteps: 1\nworkload_config: {hidden_size: 64, ffn_size: 96, num_heads: 4, seed: 7, "
      "capture_dir: here, dtype: bf16}\ncells: [{name: a, workload_config: {num_layers: 3}}, {name: moe, "
      "workload_config: "
      "{num_experts: 4}}]");
  EXPECT_EQ(plan.cells[0].race.model_dim, 64);
  EXPECT_EQ(plan.cells[0].race.num_layers, 3);
  EXPECT_EQ(plan.cells[0].race.seed, 7u);
  EXPECT_EQ(plan.cells[0].race.verify_iterations, 2);
  EXPECT_EQ(plan.cells[1].trials, 0);
  EXPECT_NE(line_with(plan, "cell moe: not run"), "");
  EXPECT_NE(line_with(plan, "not run: num_experts: 4"), "");
  EXPECT_NE(line_with(plan, "note: hidden_size is model_dim here"), "");
}

std::vector<OutputPattern> patterns_of(const std::string& yaml) {
  return read_patterns(validate(parse_yaml(yaml, "patterns.yaml"), patterns_schema()));
}

TEST(Patterns, SayWhatIsWrongWithAnOutput) {
  const auto patterns = patterns_of(
      "[{id: nan, match: {regex: 'loss=(?P<loss>nan|inf)'}}, {id: slow, match: {regex: 'slow'}, on_match: warn}, "
      "{id: end, match: {regex: '^done$'}, required_for_pass: true}]");
  EXPECT_EQ(scan(patterns, "step 1\ndone\n").wrong(), "");
  EXPECT_EQ(scan(patterns, "slow\ndone").wrong(), "");
  EXPECT_EQ(scan(patterns, "slow\ndone").matches.at(0).id, "slow");
  EXPECT_EQ(scan(patterns, "a\nloss=nan now\ndone").wrong(), "pattern 'nan' met: loss=nan now");
  EXPECT_EQ(scan(patterns, "loss=nan\ndone").capture.at("loss"), "nan");
  EXPECT_EQ(scan(patterns, "nearly done").wrong(), "pattern 'end', which is required, met no line");
}

TEST(Patterns, TakeNoLongerThanTheLine) {
  const auto patterns = patterns_of("[{id: a, match: {regex: '(a+)+b'}}]");
  EXPECT_EQ(scan(patterns, std::string(2000, 'a')).wrong(), "");
}

TEST(Patterns, RefuseWhatIsNotRead) {
  for (const char* one :
       {"{id: a, match: {regex: '('}}", "{id: a, match: {regex: a, condition: 'exit_code == 1'}}",
        "{id: a, match: {regex: '(a)\\1'}}", "{id: a, match: {regex: a}, on_match: info, required_for_pass: true}"})
    EXPECT_THROW((void)patterns_of("[" + std::string(one) + "]"), UsageError) << one;
  EXPECT_THROW((void)patterns_of("[{id: a, match: {regex: a}}, {id: a, match: {regex: b}}]"), UsageError);
}

TEST(Order, EveryBlockHoldsEveryCellOnceShuffled) {
  const Plan plan = small();
  const std::vector<Turn> turns = order_of(plan);
  ASSERT_EQ(turns.size(), 48u);
  std::set<std::vector<size_t>> orders;
  for (size_t block = 0; block < 16; ++block) {
    std::vector<size_t> order;
    for (size_t i = 0; i < 3; ++i) order.push_back(turns[3 * block + i].cell);
    EXPECT_EQ(std::set<size_t>(order.begin(), order.end()).size(), 3u);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 2u);
}

RecordedTrial trial_of(const std::string& cell, int64_t index, TrialVerdict verdict, double step,
                       const std::string& outcome = "completed") {
  RecordedTrial trial{cell, index, 1, {}, "some log"};
  trial.result.verdict = verdict;
  trial.result.outcome = outcome;
  trial.result.result = {{"evidence",
                          {{{"step_seconds", {{"median", step}}},
                            {"events", {{"count", verdict == TrialVerdict::kFail ? 2 : 0}}},
                            {"collectives", 10},
                            {"collective_bytes", 1 << 20}}}}};
  return trial;
}

std::vector<RecordedTrial> trials_of(int64_t baseline_failures, int64_t flush_failures, double flush_step,
                                     int64_t errors = 0) {
  std::vector<RecordedTrial> trials;
  for (int64_t i = 0; i < 16; ++i) {
    trials.push_back(trial_of("baseline", i, i < baseline_failures ? TrialVerdict::kFail : TrialVerdict::kPass, 1));
    trials.push_back(
        i < errors ? trial_of("flush", i, TrialVerdict::kError, 1, "did_not_run")
                   : trial_of("flush", i, i < flush_failures ? TrialVerdict::kFail : TrialVerdict::kPass, flush_step));
  }
  return trials;
}

TEST(Statistics, ZeroOfSixteenIsABoundAndNotAProof) {  // lesson 52
  const Matrix matrix = summarise(small(), trials_of(9, 0, 1.18));
  EXPECT_EQ(rate_text(matrix.cells[1]), "0/16: <=17.1 % at 95 %");
  EXPECT_NE(rate_text(matrix.cells[0]).find("9/16 = 56.2 % ["), std::string::npos);
  EXPECT_LT(*matrix.cells[1].p_adjusted, 0.05);
  EXPECT_EQ(matrix.cells[1].confound, "speed (+18%)");
  EXPECT_NE(matrix.cells[1].finding.find("removes the failure"), std::string::npos);
}

TEST(Statistics, ACellThatDiffersByChanceHasNoEffect) {
  const Matrix matrix = summarise(small(), trials_of(2, 0, 1.0));
  EXPECT_EQ(matrix.cells[1].confound, "no effect");
  EXPECT_EQ(matrix.cells[1].finding, "no difference from the baseline is shown");
  EXPECT_EQ(matrix.cells[0].confound, "n/a");
}

TEST(Statistics, ErrorsLeaveTheDenominator) {  // lesson 51
  const Matrix matrix = summarise(small(), trials_of(9, 0, 1.0, 4));
  EXPECT_EQ(matrix.cells[1].valid(), 12);
  EXPECT_EQ(matrix.cells[1].errors, 4);
  EXPECT_EQ(matrix.cells[2].confound, "error");  // not one trial
}

TEST(Statistics, ABaselineThatDidNotRunDisqualifiesTheMatrix) {
  std::vector<RecordedTrial> trials;
  for (int64_t i = 0; i < 4; ++i) trials.push_back(trial_of("baseline", i, TrialVerdict::kError, 1, "did_not_run"));
  const Matrix matrix = summarise(small(), trials);
  EXPECT_TRUE(matrix.disqualified);
  EXPECT_EQ(matrix.cells[0].confound, "did_not_run");
  EXPECT_NE(markdown(small(), matrix).find("Disqualified"), std::string::npos);
}

TEST(Statistics, AMitigationThatNothingReadsIsNamed) {  // lesson 50
  const Matrix matrix = summarise(small(), trials_of(9, 9, 1.0));
  ASSERT_EQ(matrix.cells[1].notes.size(), 1u);
  EXPECT_NE(matrix.cells[1].notes[0].find("GDR_FLUSH"), std::string::npos);
}

TEST(Bundles, OneThatRepeatsTheEnvironmentIsNamed) {
  const Bundle bundle{"ll", "", {{"NCCL_PROTO", "LL"}}, ""};
  EXPECT_EQ(no_op_reason(bundle, {{"NCCL_PROTO", "Simple"}}), "");
  EXPECT_NE(no_op_reason(bundle, {{"NCCL_PROTO", "LL"}}), "");
}

TEST(Report, EscapesWhatItShows) {
  Plan plan = small();
  plan.name = "<script>alert(1)</script>";
  const Matrix matrix = summarise(plan, trials_of(9, 0, 1));
  EXPECT_EQ(markdown(plan, matrix).find("<script>"), std::string::npos);
}

// Passes every trial, but none before three are running: a campaign that ran fewer would wait for ever.
class Gathering : public trials::Executor {
 public:
  int slots() const override { return 3; }
  int64_t start(const trials::Task& task) override {
    running_.push_back({++last_, task.folder});
    most_ = std::max(most_, running_.size());
    return last_;
  }
  trials::Event wait() override {
    EXPECT_EQ(most_, 3u);
    const auto [number, folder] = running_.front();
    running_.pop_front();
    const Json request = parse_json_text(read_file(folder / "request.json", 1 << 20), "request");
    const Json result = {{"verdict", "pass"}, {"outcome", "completed"}, {"sentence", ""}, {"evidence", Json::array()}};
    if (!broken_)
      write_file_atomically(folder / "response.json", to_json_text({{"nonce", request["nonce"]}, {"result", result}}));
    return {number, {}, trials::TaskEnd{.lost = broken_, .error = broken_ ? "planted" : ""}};
  }
  std::size_t most_ = 0;
  bool broken_ = false;

 private:
  std::deque<std::pair<int64_t, std::filesystem::path>> running_;
  int64_t last_ = 0;
};

CampaignOptions in(const TemporaryFolder& folder) {
  CampaignOptions options;
  options.folder = folder.path() / "out";
  return options;
}

TEST(Campaign, FillsTheSlotsOfItsExecutorAndRecordsEveryTrialOnce) {
  const Plan plan = plan_of("trials: 4\nsteps: 5\nwarmup_trial: false\ncells: [{name: baseline}, {name: other}]");
  const TemporaryFolder folder;
  Gathering executor;
  const CampaignResult result = run_campaign(plan, executor, in(folder));
  EXPECT_EQ(result.ran, 8);
  EXPECT_EQ(run_campaign(plan, executor, in(folder)).resumed, 8);
}

TEST(Campaign, TriesTrialsAgainThatWereLostWithTheirMachine) {
  const Plan plan = plan_of("trials: 2\nsteps: 5\nwarmup_trial: false\ncells: [{name: baseline}, {name: ll}]");
  const TemporaryFolder folder;
  Gathering executor;
  executor.broken_ = true;
  const CampaignResult result = run_campaign(plan, executor, in(folder));
  EXPECT_EQ(result.ran, 4);
  EXPECT_EQ(result.lost, 4 * (trials::kTriesOfATrial - 1));
  EXPECT_EQ(result.matrix.cells.front().errors, 2);
}

TEST(Bisect, FindsASmallestSet) {
  BisectOptions options;
  options.mitigations = {"a", "b", "c", "d"};
  uint64_t calls = 0;
  const auto needs_two = [&](const std::vector<std::string>& set, int64_t) {
    const bool stops = std::count(set.begin(), set.end(), "b") + std::count(set.begin(), set.end(), "d") == 2;
    return !stops && ++calls % 2 == 0 ? TrialVerdict::kFail : TrialVerdict::kPass;  // every second trial fails
  };
  const BisectResult result = bisect(options, needs_two);
  EXPECT_TRUE(result.found);
  EXPECT_EQ(result.mitigations, (std::vector<std::string>{"b", "d"}));
  EXPECT_GE(result.trials_each, 8);
}

TEST(Bisect, SaysWhenThereIsNothingToFindAndWhenNothingHelps) {
  BisectOptions options;
  options.mitigations = {"a", "b"};
  EXPECT_FALSE(bisect(options, [](const auto&, int64_t) { return TrialVerdict::kPass; }).reproduced);
  EXPECT_FALSE(bisect(options, [](const auto&, int64_t) { return TrialVerdict::kError; }).reproduced);
  const BisectResult nothing = bisect(options, [](const auto&, int64_t) { return TrialVerdict::kFail; });
  EXPECT_TRUE(nothing.reproduced);
  EXPECT_FALSE(nothing.found);
}

TEST(Bisect, NamesNoSetWithoutEnoughTrialsOfIt) {
  BisectOptions options;
  options.mitigations = {"a"};
  const auto verdict_of_sets = [](TrialVerdict verdict) {
    return
        [verdict](const std::vector<std::string>& set, int64_t) { return set.empty() ? TrialVerdict::kFail : verdict; };
  };
  EXPECT_FALSE(bisect(options, verdict_of_sets(TrialVerdict::kError)).found) << "errors are no clean trials";
  options.max_trials = options.baseline_trials + 1;
  const BisectResult cut = bisect(options, verdict_of_sets(TrialVerdict::kPass));
  ASSERT_GT(cut.trials_each, 1);
  EXPECT_FALSE(cut.found);
  EXPECT_EQ(cut.sentence, "undecided after 17 trials; raise --max-trials");
}

TEST(Trial, OnlyTheCallersOwnLauncherGetsTheWholeEnvironment) {
  ::setenv("AGENT_SOCKET_OF_A_TEST", "here", 1);
  const TemporaryFolder folder("launched");
  TrialRequest request;
  const auto gets_it = [&] {
    return ask(request, folder.path() / "trial").task().variables.contains("AGENT_SOCKET_OF_A_TEST");
  };
  EXPECT_FALSE(gets_it());
  request.launch = race::typed_launch("ssh", "n1", "");
  EXPECT_TRUE(gets_it());
  ::unsetenv("AGENT_SOCKET_OF_A_TEST");
}

}  // namespace triage_test
}  // namespace faultline::triage
