// Triage without processes: recipes, bundles, the order of trials, statistics and the search, on made-up trials.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "record/temporary_directory.h"
#include "triage/bisect.h"
#include "triage/campaign.h"
#include "triage/report.h"

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
      {"steps: 3\nworkload_config: {verify_iterations: 4}\ncells: [{name: a}]", "keep steps"},
      {"confound: {baseline_cell: bas}\ncells: [{name: base}]", "did you mean 'base'"},
      {"ranks: 3\ncells: [{name: a}]", "does not divide into 3 ranks"},
      {"transport: nccl\ncells: [{name: a}]", "use device: cuda"},
      {"transport: gloo\ndevice: cuda\ncells: [{name: a}]", "use threads or nccl"},
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
  EXPECT_EQ(html(plan, matrix, {}).find("<script>"), std::string::npos);
}

// Trials wait for each other until as many run as there are slots: a campaign that ran fewer would hang here.
class Gathering : public Executor {
 public:
  int slots() const override { return 3; }
  TrialResult run(const TrialRequest& request, const std::filesystem::path&) override {
    std::unique_lock<std::mutex> lock(mutex_);
    most_ = std::max(most_, ++running_);
    all_here_.notify_all();
    all_here_.wait(lock, [&] { return most_ == 3; });
    --running_;
    if (request.cell == "ll") throw RuntimeFailure("planted");
    TrialResult result;
    result.verdict = TrialVerdict::kPass;
    result.outcome = "completed";
    result.result = {{"evidence", Json::array()}};
    return result;
  }
  int most_ = 0;

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  int running_ = 0;
};

CampaignOptions in(const TemporaryDirectory& folder) {
  CampaignOptions options;
  options.folder = folder.path() / "out";
  return options;
}

TEST(Campaign, FillsTheSlotsOfItsExecutorAndRecordsEveryTrialOnce) {
  const Plan plan = plan_of("trials: 4\nsteps: 5\nwarmup_trial: false\ncells: [{name: baseline}, {name: other}]");
  const TemporaryDirectory folder;
  Gathering executor;
  const CampaignResult result = run_campaign(plan, executor, in(folder));
  EXPECT_EQ(executor.most_, 3);
  EXPECT_EQ(result.ran, 8);
  EXPECT_EQ(run_campaign(plan, executor, in(folder)).resumed, 8);
}

TEST(Campaign, AnExecutorThatFailsEndsItWhateverElseIsRunning) {
  const Plan plan = plan_of("trials: 4\nsteps: 5\nwarmup_trial: false\ncells: [{name: baseline}, {name: ll}]");
  const TemporaryDirectory folder;
  Gathering executor;
  EXPECT_THROW((void)run_campaign(plan, executor, in(folder)), RuntimeFailure);
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

}  // namespace triage_test
}  // namespace faultline::triage
