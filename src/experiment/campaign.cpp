#include "experiment/campaign.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "base/json.h"
#include "base/machine.h"
#include "experiment/comparable.h"
#include "experiment/start.h"
#include "experiment/trial.h"
#include "model/build.h"
#include "record/document.h"
#include "train/checkpoint.h"

namespace faultline::experiment {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlanKind = "experiment_plan";
constexpr std::string_view kPilotPrefix = "pilot:";

// What may differ in one experiment: where its model lies, how long it is, what it is asked.
void leave_out_names(Json& recipe) {
  recipe.erase("model");
  for (const char* key : {"seeds", "pilot", "scales", "question"}) recipe["experiment"].erase(key);
}

// The lock of a trial, or nothing where another process has it. The kernel drops it with its holder.
std::optional<FileDescriptor> claim(const fs::path& folder) {
  fs::create_directories(folder);
  FileDescriptor file = open_file(folder / "claim", O_RDWR | O_CREAT);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno == EWOULDBLOCK) return std::nullopt;
  fail_with_errno(folder / "claim", "lock", errno);
}

std::string folder_name(const record::TrialKey& key) {
  std::string cell = key.cell;
  std::replace(cell.begin(), cell.end(), ':', '-');
  return fmt::format("{}-{}", cell, key.index);
}

}  // namespace

std::string pilot_cell(const std::string& arm) { return std::string(kPilotPrefix) + arm; }

bool is_of_the_table(const std::string& cell) {
  return !cell.starts_with(kPilotPrefix) && record::attempted_cell(cell) == cell;
}

Json read_experiment_plan(const fs::path& folder) {
  return record::read_document(folder / "experiment.json", kPlanKind);
}

std::string first_difference(const Json& one, const Json& other) {
  if (one.at("dtype") != other.at("dtype")) return "dtype";
  Json ours = one.at("recipe"), theirs = other.at("recipe");
  for (Json* recipe : {&ours, &theirs}) leave_out_names(*recipe);
  const Json steps = Json::diff(ours, theirs);
  return steps.empty() ? "its identity, of another version of faultline" : steps[0].at("path").get<std::string>();
}

Experiment::Experiment(Node recipe, std::string dtype, fs::path folder, record::Maker maker)
    : recipe_(std::move(recipe)),
      dtype_(std::move(dtype)),
      folder_(std::move(folder)),
      maker_(std::move(maker)),
      spec_(read_experiment(recipe_.at("experiment"))) {
  check_calibration(recipe_, spec_);
  check_arms_are_judged_alike(recipe_, spec_);
  preparation_ = read_preparation(spec_, folder_);
  for (const Arm& arm : spec_.arms) {
    const Node checked = trial_recipe({arm.name, 0});
    try {
      if (preparation_.complete || !reads_verdict(checked)) (void)lab::read_training(checked);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("arm '{}': {}", arm.name, error.what()));
    }
  }
}

std::string experiment_identity(const Node& recipe, const std::string& dtype) {
  Json json = to_json(recipe);
  leave_out_names(json);
  json["dtype"] = dtype;
  return record::json_hash(json);
}

Node Experiment::trial_recipe(const record::TrialKey& key) const {
  const std::string cell(record::attempted_cell(key.cell));
  const bool pilot = cell.starts_with(kPilotPrefix);
  const std::string name = pilot ? cell.substr(kPilotPrefix.size()) : cell;
  const Node prepared = apply_preparation(recipe_, spec_, preparation_);
  Node recipe = arm_recipe(prepared, spec_.arm(name), key.index + (pilot ? kPilotSeeds : 0));
  if (!spec_.diagnosis.empty() && preparation_.complete) place_verdict(recipe, preparation_);
  return recipe;
}

// The same on every machine: without paths, with what the verdict said instead of where it lies.
std::string Experiment::fingerprint_of(const Node& recipe) const {
  Json json = to_json(recipe);
  json.erase("model");
  json["dtype"] = dtype_;
  json["weights"] = weights_;
  if (!spec_.diagnosis.empty() && json.contains("aqn") && json["aqn"]["layers"].is_object())
    json["aqn"]["layers"] = {{"diagnosed", preparation_.layer}};
  json["evaluate"] = to_json(recipe_.at("experiment").at("evaluate"));
  json["draws"] = spec_.draws;
  return record::json_hash(json);
}

void Experiment::open(lab::LoadedModel& loaded, const Diagnose& diagnose, const ExperimentProgress& progress) {
  weights_ = model::weights_fingerprint(*loaded.model);
  fs::create_directories(folder_);
  const fs::path file = folder_ / "experiment.json";
  if (fs::exists(file)) {
    const Json known = read_experiment_plan(folder_);
    if (known.at("identity") != experiment_identity(recipe_, dtype_))
      throw UsageError(
          fmt::format("{}: begun as another experiment, whose recipe differs first at {}; use another --out, or the "
                      "recipe it was begun with",
                      folder_.string(), first_difference(known, plan_json())));
    if (known.at("weights") != weights_)
      throw UsageError(
          fmt::format("{}: begun with other weights (fingerprint {}, now {}); use another --out, or the model "
                      "it was begun with",
                      folder_.string(), known.at("weights").get<std::string>(), weights_));
  } else {
    record::write_document(file, kPlanKind, plan_json());
  }
  if (!preparation_.complete) find_out(loaded, diagnose, progress);
  check_trials();
}

Json Experiment::plan_json() const {
  return {{"recipe", to_json(recipe_)},
          {"dtype", dtype_},
          {"identity", experiment_identity(recipe_, dtype_)},
          {"weights", weights_}};
}

void Experiment::find_out(lab::LoadedModel& loaded, const Diagnose& diagnose, const ExperimentProgress& progress) {
  std::optional<FileDescriptor> alone = claim(folder_ / "preparation");
  if (!alone) throw RuntimeFailure(fmt::format("{}: another process is preparing it; run again", folder_.string()));
  const Snapshot start(*loaded.model);
  preparation_ = prepare(loaded, weights_, recipe_, spec_, folder_, diagnose, progress.on_line);
  start.restore(*loaded.model);
  for (const Arm& arm : spec_.arms) {
    const Node checked = trial_recipe({arm.name, 0});
    (void)lab::read_training(checked);
  }
}

std::string Experiment::foreign(const record::Trial& trial) const {
  if (trial.fingerprint == fingerprint_of(trial_recipe(trial.key))) return "";
  return fmt::format("trial {} of {} was run with another recipe, calibration or verdict", trial.key.index,
                     trial.key.cell);
}

void Experiment::check_trials() const {
  if (!fs::exists(folder_ / "campaign.sqlite")) return;
  record::CampaignStore(folder_ / "campaign.sqlite").for_each([&](record::Trial&& trial) {
    if (const std::string sentence = misshapen(trial); !sentence.empty())
      throw UsageError(fmt::format("{}: {}; use another --out", folder_.string(), sentence));
    if (const std::string sentence = foreign(trial); !sentence.empty())
      throw UsageError(
          fmt::format("{}: {} than the folder has now; put back the calibration.json and verdict.json that the trials "
                      "were run with, or use another --out",
                      folder_.string(), sentence));
  });
}

std::vector<record::TrialKey> Experiment::keys(const CampaignPart& part) const {
  std::vector<record::TrialKey> all;
  std::vector<std::string> arms;
  for (const Arm& arm : spec_.arms) {
    const bool named = part.arms.empty() || part.arms.contains(arm.name);
    const bool piloted = !part.pilot || spec_.contrasts.empty() || arm.name == spec_.contrasts.front().arm ||
                         arm.name == spec_.contrasts.front().against;
    if (named && piloted) arms.push_back(arm.name);
  }
  for (int64_t seed = 0; seed < (part.pilot ? spec_.pilot : spec_.seeds); ++seed) {
    if (!part.seeds.empty() && !part.seeds.contains(seed)) continue;
    for (const std::string& arm : arms) all.push_back({part.pilot ? pilot_cell(arm) : arm, seed});
  }
  return all;
}

std::vector<record::TrialKey> Experiment::pending(const CampaignPart& part) const {
  std::vector<record::TrialKey> left = keys(part);
  if (!fs::exists(folder_ / "campaign.sqlite")) return left;
  record::CampaignStore store(folder_ / "campaign.sqlite");
  std::vector<std::string> cells;
  int64_t seeds = 0;
  for (const record::TrialKey& key : left) {
    if (std::find(cells.begin(), cells.end(), key.cell) == cells.end()) cells.push_back(key.cell);
    seeds = std::max(seeds, key.index + 1);
  }
  const std::vector<record::TrialKey> missing = store.pending(cells, seeds);
  std::erase_if(left, [&](const record::TrialKey& key) {
    return std::find(missing.begin(), missing.end(), key) == missing.end();
  });
  return left;
}

int64_t Experiment::unproven(const CampaignPart& part) const {
  if (!fs::exists(folder_ / "campaign.sqlite")) return 0;
  const std::vector<record::TrialKey> asked = keys(part);
  int64_t count = 0;
  record::CampaignStore(folder_ / "campaign.sqlite").for_each([&](record::Trial&& trial) {
    count +=
        trial.status == record::TrialStatus::kError && std::find(asked.begin(), asked.end(), trial.key) != asked.end();
  });
  return count;
}

void Experiment::try_again(const CampaignPart& part) {
  record::CampaignStore(folder_ / "campaign.sqlite").set_errors_aside(keys(part));
}

SameStart Experiment::starts_of(record::CampaignStore& store, const std::set<uint64_t>& seeds) const {
  SameStart starts;
  store.for_each([&](record::Trial&& trial) {
    if (seeds.contains(trial.seed)) (void)starts.note(trial, trial_recipe(trial.key));
  });
  return starts;
}

bool Experiment::run(lab::LoadedModel& loaded, const Snapshot& start, const record::TrialKey& key,
                     const ExperimentProgress& progress) {
  record::CampaignStore store(folder_ / "campaign.sqlite");
  const fs::path folder = folder_ / "trials" / folder_name(key);
  const std::optional<FileDescriptor> mine = claim(folder);
  if (!mine || store.is_there(key)) return false;
  if (progress.on_trial) progress.on_trial(key);
  TrialRequest request{key, trial_recipe(key), "", folder, &spec_, {}, maker_};
  request.fingerprint = fingerprint_of(request.recipe);
  record::Trial trial;
  try {
    start.restore(*loaded.model);
    request.start = shared_start(loaded, weights_, request.recipe, folder_);
    if (request.start) {
      const auto seed = static_cast<uint64_t>(request.recipe.at("seed").as_integer());
      const std::string sentence =
          starts_of(store, {seed}).note(key, request.recipe, train::checkpoint_hash(*request.start));
      if (!sentence.empty()) throw UsageError(fmt::format("{}: {}", folder_.string(), sentence));
    }
    start.restore(*loaded.model);
    trial = run_trial(loaded, request, {progress.on_event, progress.on_line});
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("arm '{}', seed {}: {}", key.cell, key.index, error.what()));
  }
  (void)store.insert(trial);
  std::error_code ignored;  // a finished trial is its record; its checkpoints are worth nothing and may be gigabytes
  fs::remove_all(folder_ / "trials" / trial.outcome["run"].get<std::string>() / "checkpoints", ignored);
  const at::Device device = loaded.model->device();  // trials that share it need what this one has kept and not used
  if (!device.is_cpu()) at::getDeviceAllocator(device.type())->emptyCache();
  return true;
}

}  // namespace faultline::experiment
