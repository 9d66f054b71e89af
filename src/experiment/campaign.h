// The trials of an experiment in their folder: experiment.json (what it is), campaign.sqlite (finished trials),
// trials/ (runs), calibration.json and verdict.json where something had to be found out first. Any number of processes
// may work on one folder: each claims a trial by a lock that dies with the process, so a killed worker's trial is free
// again, and the store takes every trial once.
#pragma once

#include <array>
#include <functional>
#include <set>

#include "experiment/comparable.h"
#include "experiment/preparation.h"
#include "experiment/trial.h"

namespace faultline::experiment {

// What a trial's run directory holds when the trial is done.
inline constexpr std::array<const char*, 4> kRunFiles = {"manifest.json", "events.jsonl", "ledger.json",
                                                         "summary.json"};

struct CampaignPart {          // of the trials, for this process
  std::set<std::string> arms;  // empty: all
  std::set<int64_t> seeds;     // indices; empty: all
  bool pilot = false;          // the pilot's trials instead
  double time_limit = 0;       // seconds after which no trial begins; 0: none
};

struct ExperimentProgress {
  std::function<void(const record::TrialKey&)> on_trial;  // before each
  std::function<void(const Json& event)> on_event;        // of the training
  std::function<void(const std::string&)> on_line;
};

struct MergeSource {
  std::filesystem::path folder;
  std::string called;  // what the folder is to whoever reads an error, as in "--merge FOLDER"
};

class Experiment {
 public:
  // dtype is part of what an experiment is; its maker is kept with every trial. Validates every arm;
  // reads nothing but the recipe and, where the arms need what a preparation finds, the folder.
  Experiment(Node recipe, std::string dtype, std::filesystem::path folder, record::Maker maker);

  const ExperimentSpec& spec() const { return spec_; }
  const std::filesystem::path& folder() const { return folder_; }
  // Writes experiment.json, or refuses a folder that was begun with another recipe or other weights. Calibrates and
  // diagnoses where the recipe asks for it and it was not done. UsageError as check_trials has it.
  void open(lab::LoadedModel& loaded, const Diagnose& diagnose, const ExperimentProgress& progress);
  // UsageError where a stored trial was run with another recipe, calibration or verdict than the folder has.
  void check_trials() const;

  std::vector<record::TrialKey> keys(const CampaignPart& part) const;     // all of that part
  std::vector<record::TrialKey> pending(const CampaignPart& part) const;  // not in the store
  int64_t unproven(const CampaignPart& part) const;                       // in the store without proof
  // Trials of that part without proof are missing again; the store keeps what they were.
  void try_again(const CampaignPart& part);
  // Runs one trial from these weights, and stores it. False: somebody else is at it, or it is there.
  bool run(lab::LoadedModel& loaded, const Snapshot& start, const record::TrialKey& key,
           const ExperimentProgress& progress);

  // Takes the trials of other folders of the same experiment and their runs; returns how many were new. All folders are
  // checked before the first trial is taken.
  int64_t merge(const std::vector<MergeSource>& others);
  // UsageError where recipe, weights, calibration, a trial's recipe or the weights that the arms of a seed began with
  // differ.
  void check_merge(const std::vector<MergeSource>& others) const;

  Node trial_recipe(const record::TrialKey& key) const;

 private:
  Json plan_json() const;
  void find_out(lab::LoadedModel& loaded, const Diagnose& diagnose, const ExperimentProgress& progress);
  std::string foreign(const record::Trial& trial) const;  // a sentence where it is of another recipe than ours; else ""
  void check_plan_of(const MergeSource& other) const;
  int64_t take(const MergeSource& other);
  std::string fingerprint_of(const Node& recipe) const;
  SameStart starts_of(record::CampaignStore& store, const std::set<uint64_t>& seeds) const;  // of the trials there

  Node recipe_;
  std::string dtype_, weights_;
  std::filesystem::path folder_;
  record::Maker maker_;
  ExperimentSpec spec_;
  Preparation preparation_;
};

// Equal for equal experiments on all machines: recipe without the model's path and the number of seeds, and dtype.
std::string experiment_identity(const Node& recipe, const std::string& dtype);

std::string pilot_cell(const std::string& arm);  // "pilot:baseline"
bool is_of_the_table(const std::string& cell);   // neither a pilot's nor an earlier attempt

// Where the plans of two experiments differ: a path in their recipes, or "dtype".
std::string first_difference(const Json& one, const Json& other);

Json read_experiment_plan(const std::filesystem::path& folder);  // experiment.json: recipe, dtype, identity, weights

}  // namespace faultline::experiment
