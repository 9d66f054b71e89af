#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/files/file.h"
#include "cli/experiment_command.h"
#include "cli/output.h"
#include "cli/reproduce/rerun.h"
#include "experiment/campaign.h"
#include "report/field.h"

namespace faultline::cli {
namespace {

namespace fs = std::filesystem;
using report::LoadedRecord;

std::string label_of(const std::string& arm, int64_t seed) { return fmt::format("{}/{}", arm, seed); }

struct Trials {
  std::set<std::string> arms, devices;
  std::set<int64_t> seeds;
  std::vector<const Json*> chosen;  // events of the record
  std::size_t of_the_table = 0;
};

// Every chosen seed of every chosen arm, all of which must be there.
Trials choose(const LoadedRecord& record, const RerunChoice& choice) {
  Trials trials;
  std::map<std::string, const Json*> known;
  for (const Json& event : record.events) {
    const auto arm = event.at("cell").get<std::string>();
    if (!experiment::is_of_the_table(arm)) continue;
    const auto seed = event.at("index").get<int64_t>();
    known[label_of(arm, seed)] = &event;
    if (choice.arms.empty()) trials.arms.insert(arm);
    if (choice.seeds.empty()) trials.seeds.insert(seed);
  }
  if (!choice.arms.empty())
    for (const std::string& arm : comma_separated(choice.arms)) trials.arms.insert(arm);
  if (!choice.seeds.empty())
    for (const int64_t seed : parse_indices("--seeds", choice.seeds)) trials.seeds.insert(seed);
  if (known.empty()) refuse_rerun(record, "it has no trials");
  for (const std::string& arm : trials.arms)
    for (const int64_t seed : trials.seeds) {
      const auto found = known.find(label_of(arm, seed));
      if (found == known.end())
        refuse_rerun(record,
                     fmt::format("it has no trial of arm '{}' and seed {}; choose with --arms and --seeds what it "
                                 "has, or let it finish first",
                                 arm, seed));
      trials.chosen.push_back(found->second);
      trials.devices.insert(found->second->at("outcome").at("device").get<std::string>());
    }
  trials.of_the_table = known.size();
  return trials;
}

// Rows by the name of their arm or contrast: the order of arms is no result, and times are none.
Json by_name(const Json& rows, const char* key) {
  Json named = Json::object();
  for (Json row : rows) {
    for (const char* time : {"seconds_a_step", "noise_seconds_a_step", "overhead", "earlier_attempts"}) row.erase(time);
    const auto name = row.at(key).get<std::string>();
    named[name] = std::move(row);
  }
  return named;
}

}  // namespace

Rerun rerun_of_experiment(const LoadedRecord& record, const std::string& model, const fs::path& folder,
                          const RerunChoice& choice) {
  std::error_code ignored;
  if (!fs::exists(record.path / "experiment.json", ignored))
    refuse_rerun(record, "there is no experiment.json: it does not say how it was made");
  const Trials trials = choose(record, choice);
  const Json plan = experiment::read_experiment_plan(record.path);
  Json recipe = plan.at("recipe");
  Json& experiment = recipe.at("experiment");
  for (const std::string& arm : trials.arms)
    if (!experiment.at("arms").contains(arm)) refuse_rerun(record, fmt::format("its recipe has no arm '{}'", arm));
  if (trials.devices.size() > 1)
    refuse_rerun(record, fmt::format("its trials ran on {}; choose those of one device with --arms and --seeds",
                                     fmt::join(trials.devices, " and ")));
  if (!model.empty()) recipe["model"] = model;
  experiment.erase("scales");  // it is resolved
  experiment["seeds"] = std::max(experiment.at("seeds").get<int64_t>(), *trials.seeds.rbegin() + 1);
  const fs::path file = folder / "experiment-again.json";
  write_file_atomically(file, to_json_text(recipe, 2) + "\n");
  Rerun rerun;
  rerun.result = folder / "runs";
  rerun.below = true;
  rerun.whole = trials.chosen.size() == trials.of_the_table;
  for (const Json* trial : trials.chosen)
    rerun.trials.insert(label_of(trial->at("cell").get<std::string>(), trial->at("index").get<int64_t>()));
  rerun.arguments = {"run",  // values after '=': no name in a record is taken for an option
                     file.string(),
                     "--dtype=" + plan.at("dtype").get<std::string>(),
                     "--device=" + *trials.devices.begin(),
                     fmt::format("--arms={}", fmt::join(trials.arms, ",")),
                     fmt::format("--seeds={}", fmt::join(trials.seeds, ",")),
                     "--out=" + rerun.result.string()};
  return rerun;
}

Json content_of_experiment(const LoadedRecord& record, const Rerun& rerun) {
  Json content = {{"weights", experiment::read_experiment_plan(record.path).at("weights")},
                  {"calibration", record.document.value("calibration", Json())}};
  record::CampaignStore(record.path / "campaign.sqlite", record::StoreUse::kRead).for_each([&](record::Trial&& trial) {
    const std::string label = label_of(trial.key.cell, trial.key.index);
    if (!rerun.trials.contains(label)) return;
    Json& one = content["trials"][label];
    one = {{"seed", trial.seed},
           {"status", record::to_string(trial.status)},
           {"fingerprint", trial.fingerprint},
           {"evidence", std::move(trial.evidence)}};
    for (const char* key : {"results", "complaints", "curves"})
      if (trial.outcome.contains(key)) one[key] = std::move(trial.outcome[key]);
    if (one.contains("curves")) one["curves"].erase("seconds");
    if (Json& faults = one["evidence"]["faults"]; faults.is_object())
      faults.erase("parts");  // one was resumed, perhaps
  });
  if (rerun.whole)
    content["table"] = {{"arms", by_name(record.document.at("arms"), "arm")},
                        {"contrasts", by_name(record.document.at("contrasts"), "name")}};
  return content;
}

std::vector<Json> versions_of_trials(const LoadedRecord& record, const RerunChoice& choice) {
  std::vector<Json> found;
  for (const Json* trial : choose(record, choice).chosen) {
    const Json& versions = report::at(trial->at("outcome"), "versions");
    if (!versions.is_object()) return {};
    if (std::find(found.begin(), found.end(), versions) == found.end()) found.push_back(versions);
  }
  return found;
}

}  // namespace faultline::cli
