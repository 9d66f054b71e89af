// Trials of other folders of the same experiment. A merge takes all of its folders or none: a folder that had taken the
// first of two and then refused the second would hold trials whose design and calibration it gave back.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "experiment/campaign.h"
#include "experiment/trial.h"

namespace faultline::experiment {
namespace {

namespace fs = std::filesystem;

// The run directory that a trial's record names. A folder from which somebody removed it has the trial all the same.
void copy_run(const fs::path& from, const fs::path& to) {
  for (const char* name : kRunFiles) {
    if (!fs::exists(from / name)) continue;
    fs::create_directories(to);
    fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing);
  }
}

// Our trials that ended in an error and that the other store set aside for another attempt.
std::vector<record::TrialKey> tried_again(record::CampaignStore& ours, record::CampaignStore& theirs) {
  std::vector<record::TrialKey> keys;
  theirs.for_each([&](record::Trial&& trial) {
    const std::string cell(record::attempted_cell(trial.key.cell));
    if (cell == trial.key.cell) return;
    for (const record::Trial& mine : ours.trials(cell))
      if (mine.key.index == trial.key.index && mine.started == trial.started && mine.finished == trial.finished)
        keys.push_back(mine.key);
  });
  return keys;
}

// Below trials/, wherever the record says that it lies.
fs::path run_of(const record::Trial& trial) {
  return (fs::path("trials") / trial.outcome.at("run").get<std::string>()).lexically_normal();
}

// A file of the run that lies elsewhere, or "": a merge must not copy what somebody only pointed at.
fs::path leads_out_of(const fs::path& folder, const fs::path& run) {
  for (const char* name : kRunFiles) {
    const fs::path file = folder / run / name;
    if (!fs::exists(file)) continue;
    const fs::path inside = fs::canonical(file).lexically_relative(fs::canonical(folder));
    if (inside.empty() || *inside.begin() == "..") return file;
  }
  return {};
}

// Those of theirs that ours does not have.
std::vector<record::Trial> new_trials(record::CampaignStore& ours, record::CampaignStore& theirs,
                                      const std::vector<record::TrialKey>& repeated) {
  std::vector<record::Trial> trials;
  theirs.for_each([&](record::Trial&& trial) {
    if (!ours.is_there(trial.key) || std::ranges::find(repeated, trial.key) != repeated.end())
      trials.push_back(std::move(trial));
  });
  return trials;
}

[[noreturn]] void refuse(const MergeSource& other, const std::string& what, const fs::path& ours) {
  throw UsageError(
      fmt::format("{}: {}; its trials cannot be counted with those of {}", other.called, what, ours.string()));
}

}  // namespace

void Experiment::check_plan_of(const MergeSource& other) const {
  const Json theirs = read_experiment_plan(other.folder), ours = read_experiment_plan(folder_);
  std::string what;
  if (theirs.at("identity") != ours.at("identity"))
    what = fmt::format("its recipe differs, first at {}", first_difference(ours, theirs));
  else if (theirs.at("weights") != ours.at("weights"))
    what = "its model has other weights";
  if (!what.empty()) refuse(other, what, folder_);
}

void Experiment::check_merge(const std::vector<MergeSource>& others) const {
  record::CampaignStore store(folder_ / "campaign.sqlite");
  std::vector<std::pair<const MergeSource*, record::Trial>> trials;
  std::set<uint64_t> seeds;
  std::set<std::pair<std::string, int64_t>> known;  // of the folders before
  for (const MergeSource& other : others) {
    check_plan_of(other);
    record::CampaignStore their_store(other.folder / "campaign.sqlite", record::StoreUse::kRead);
    their_store.for_each([&](record::Trial&& trial) {
      for (const std::string& sentence : {misshapen(trial), foreign(trial)})
        if (!sentence.empty()) refuse(other, sentence, folder_);
      const fs::path run = run_of(trial);
      if (*run.begin() != "trials") refuse(other, fmt::format("a record names '{}' as its run", run.string()), folder_);
      if (const fs::path file = leads_out_of(other.folder, run); !file.empty())
        refuse(other, fmt::format("{} is a link to another place", file.string()), folder_);
    });
    for (record::Trial& trial : new_trials(store, their_store, tried_again(store, their_store))) {
      if (!known.emplace(trial.key.cell, trial.key.index).second) continue;
      seeds.insert(trial.seed);
      trials.emplace_back(&other, std::move(trial));
    }
  }
  SameStart starts = starts_of(store, seeds);
  for (const auto& [other, trial] : trials)
    if (const std::string sentence = starts.note(trial, trial_recipe(trial.key)); !sentence.empty())
      refuse(*other, sentence, folder_);
}

int64_t Experiment::take(const MergeSource& other) {
  record::CampaignStore store(folder_ / "campaign.sqlite"),
      their_store(other.folder / "campaign.sqlite", record::StoreUse::kRead);
  const std::vector<record::TrialKey> repeated = tried_again(store, their_store);
  const std::vector<record::Trial> trials = new_trials(store, their_store, repeated);
  store.set_errors_aside(repeated);
  int64_t taken = 0;
  for (const record::Trial& trial : trials) {
    copy_run(other.folder / run_of(trial), folder_ / run_of(trial));
    taken += store.insert(trial) ? 1 : 0;
  }
  return taken;
}

int64_t Experiment::merge(const std::vector<MergeSource>& others) {
  check_merge(others);
  int64_t taken = 0;
  for (const MergeSource& other : others) taken += take(other);
  return taken;
}

}  // namespace faultline::experiment
