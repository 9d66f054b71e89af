// A campaign's plan of trials is balanced, its store is the truth, its executor may lose workers, its summary counts
// what it says.
#include "diagnose/campaign/campaign.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files/temporary_folder.h"
#include "diagnose/campaign/campaign_trial.h"
#include "numeric/resolution.h"
#include "numeric/rule.h"
#include "trials/runner.h"

namespace faultline::diagnose {
namespace campaign_test {

// Says that everything was found, without a model.
std::unique_ptr<trials::Executor> clerk(int64_t limit = 1000000) {
  return trials::in_process_executor([limit, ran = int64_t{-1}](const std::string& line) mutable -> std::string {
    if (ran++ < 0) return "";  // the campaign
    if (ran > limit) return R"({"error": "tired"})";
    record::Trial trial;
    trial.key = trials::trial_of(line);
    trial.status = record::TrialStatus::kPass;
    const Json said = {{"found", true}, {"layer_right", true}, {"place_right", true}, {"kind", "gain"}, {"passes", 1}};
    trial.outcome = {{"planted_kind", "gain"}, {"pool", "linear"}, {"extent", 1.0}, {"self", said}};
    return to_json_text(to_record(trial));
  });
}

const CampaignMachine kMachine;

TEST(Campaign, CoversStrengthsExtentsSitesAndLayersAlike) {
  const CampaignSpec spec = campaign_spec("full");
  for (const std::string cell : {"gain | linear", "stuck_at | layer output", "deadzone | norm"}) {
    std::map<int64_t, int> layers;
    std::map<std::string, int> faults;
    std::map<double, int> extents;
    for (int64_t i = 0; i < 120; ++i) {
      const Planned planned = planned_trial(spec, {cell, i}, 30);
      ++layers[planned.layer], ++faults[planned.entry->name], ++extents[planned.extent];
    }
    EXPECT_EQ(layers.size(), 30u);
    for (const auto& [layer, count] : layers) EXPECT_EQ(count, 4);
    EXPECT_EQ(faults.size(), 2u);
    for (const auto& [extent, count] : extents) EXPECT_NEAR(count, 40, 6);
  }
}

TEST(Campaign, OfTheFullPresetHasThreeHundredTrialsAPoolAndAThousandHealthy) {
  std::map<std::string, int64_t> trials;
  for (const CampaignCell& cell : campaign_cells(campaign_spec("full"))) trials[cell.name] = cell.trials;
  EXPECT_EQ(trials.at("healthy"), 1000);
  int64_t pools = 0;
  for (const auto& [name, count] : trials) {
    if (name.find(" | ") == std::string::npos) continue;
    ++pools;
    EXPECT_GE(count, 300) << name;
  }
  EXPECT_EQ(pools, 9 * 5);
}

TEST(Campaign, PlantsNothingThatTheModelsTypeCannotShow) {
  const FaultGrid grid = campaign_spec("full").grid;
  for (const auto& entries : {grid.entries, grid.rare, grid.fading}) {
    for (const FaultGrid::Entry& entry : entries) {
      if (entry.what.find("{spread}") != std::string::npos) continue;  // known with the model
      EXPECT_NO_THROW(numeric::check_visible(numeric::parse_rule(entry.what + ")", numeric::RuleUse::kOnTensor),
                                             numeric::Dtype::kBFloat16))
          << entry.name;
    }
  }
}

TEST(Campaign, GoesOnTrialByTrial) {
  const TemporaryFolder folder;
  const CampaignSpec spec = campaign_spec("smoke");
  record::CampaignStore store(folder.path() / "store.sqlite");
  const auto all = std::ssize(pending_trials(spec, store));
  const CampaignEnd first = run_campaign(*clerk(5), kMachine, spec, store, {folder.path()});
  EXPECT_EQ(first.done, 5);
  EXPECT_EQ(first.left, all - 5);
  EXPECT_EQ(std::ssize(first.failures), all - 5);
  EXPECT_EQ(std::ssize(pending_trials(spec, store)), all - 5);
  const CampaignEnd second = run_campaign(*clerk(), kMachine, spec, store, {folder.path()});
  EXPECT_EQ(second.done, all - 5);
  EXPECT_EQ(second.left, 0);
}

TEST(Campaign, RefusesAStoreOfAnotherOne) {
  const TemporaryFolder folder;
  const CampaignSpec spec = campaign_spec("smoke");
  record::CampaignStore store(folder.path() / "store.sqlite");
  run_campaign(*clerk(1), kMachine, spec, store, {folder.path()});
  const CampaignMachine other{.weights = "others"};
  EXPECT_THROW(run_campaign(*clerk(), other, spec, store, {folder.path()}), UsageError);
}

TEST(Campaign, RecordsAddUpToTheSameSummary) {
  const TemporaryFolder folder;
  record::CampaignStore store(folder.path() / "store.sqlite");
  run_campaign(*clerk(), kMachine, campaign_spec("smoke"), store, {folder.path()});
  write_records(store, folder.path() / "records.jsonl");
  const auto from = [](const std::filesystem::path& path) {
    return summarise([&](const auto& visit) { for_each_trial(path, visit); });
  };
  EXPECT_EQ(from(folder.path() / "store.sqlite"), from(folder.path() / "records.jsonl"));
  std::ofstream(folder.path() / "broken.jsonl") << "{\"cell\": 1}\n";
  EXPECT_THROW(from(folder.path() / "broken.jsonl"), RuntimeFailure);
}

record::Trial trial_of(const std::string& cell, int64_t index, const Json& outcome) {
  record::Trial trial;
  trial.key = {cell, index};
  trial.outcome = outcome;
  return trial;
}

TEST(Summary, CountsWhatChangedNothingApart) {
  const Json right = {{"found", true}, {"layer_right", true}, {"kind", "gain"}, {"passes", 1}};
  const Json silent = {{"found", false}, {"passes", 1}};
  const Json base = {{"planted_kind", "gain"}, {"pool", "linear"}, {"extent", 1.0}, {"fault", "gain 1%"}};
  Json judged = base, idle = base, missed = base;
  judged["self"] = right, judged["classic"] = silent;
  missed["self"] = right, missed["classic"] = silent;
  missed["self"]["changed"] = 3, missed["classic"]["changed"] = 0;  // a spike that fell in the one and not in the other
  idle["inactive"] = true, idle["self"] = silent;
  const Json healthy = {{"dtype", "fp16"}, {"rows", 2}, {"self", silent}};
  const auto summary = summarise([&](const auto& visit) {
    visit(trial_of("gain | linear", 0, judged));
    visit(trial_of("gain | linear", 1, idle));
    visit(trial_of("gain | linear", 2, missed));
    visit(trial_of("healthy", 0, healthy));
  });
  EXPECT_EQ(summary["planted"], 2);
  EXPECT_EQ(summary["inactive"], 1);
  EXPECT_EQ(summary["inactive_by_fault"]["gain 1%"], 1);
  const auto& self = summary["methods"]["self"];
  EXPECT_EQ(self["pools"]["gain x linear"]["layer"]["trials"], 2);
  EXPECT_EQ(self["pools"]["gain x linear"]["layer"]["right"], 2);
  EXPECT_EQ(self["not_met"], 0);
  EXPECT_EQ(summary["methods"]["classic"]["not_met"], 1);
  EXPECT_EQ(self["healthy"]["fp16 x 2"]["runs"], 1);
  EXPECT_EQ(self["against_classic"]["all"]["only_this"], 1);
  EXPECT_EQ(summary["methods"]["classic"]["confusion"]["gain"]["healthy"], 1);
}

TEST(Worker, AnswersEveryLineAndSaysWhatWentWrong) {
  std::vector<std::string> devices;
  TrialServer worker([&](const CampaignMachine& machine) { devices.push_back(machine.device); });
  const CampaignMachine nowhere{.model = "/nowhere"};
  EXPECT_EQ(worker.answer(to_json_text(campaign_request(nowhere, campaign_spec("smoke")))), "");
  EXPECT_EQ(devices, std::vector<std::string>{"cpu"});  // a GPU must be opened before anything is put on it
  for (const std::string line : {R"({"cell":"healthy","index":0})", "not json", "{}"})
    EXPECT_TRUE(Json::parse(worker.answer(line)).contains("error")) << line;
}

TEST(Worker, RefusesWhatIsNoCampaign) { EXPECT_THROW((void)TrialServer().answer("{}"), UsageError); }

}  // namespace campaign_test
}  // namespace faultline::diagnose
