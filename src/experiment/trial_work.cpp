#include "experiment/trial_work.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/machine.h"

namespace faultline::experiment {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "experiment";  // of a task: what the experiment's folder is to its worker
constexpr const char* kRun = "run";            // what offer_run calls the run directory

// What was found out before the first trial goes with every trial; trials and the store do not.
void put_preparation(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && entry.path().extension() == ".json" && name != "analysis.json" &&
        name != "design.json")
      fs::copy_file(entry.path(), to / name);
  }
}

// The path below trials/ that the record of a task's one trial names. It comes from a worker and is used before merge()
// looks at the record.
fs::path run_of(const fs::path& folder) {
  fs::path run;
  record::CampaignStore(folder / "campaign.sqlite", record::StoreUse::kRead).for_each([&](record::Trial&& trial) {
    const auto found = trial.outcome.find("run");
    if (found != trial.outcome.end() && found->is_string()) run = found->get<std::string>();
  });
  const bool leaves = std::find(run.begin(), run.end(), "..") != run.end();
  if (run.empty() || run.is_absolute() || leaves)
    throw RuntimeFailure(
        fmt::format("the record of a worker names '{}' as its run, which is no folder below trials/", run.string()));
  return run;
}

// The run directory gets back the name that its record knows.
void restore_run(const fs::path& folder) {
  if (!fs::exists(folder / kRun)) return;
  const fs::path run = folder / "trials" / run_of(folder);
  fs::create_directories(run.parent_path());
  fs::rename(folder / kRun, run);
}

class ExperimentWork : public trials::Work {
 public:
  ExperimentWork(Experiment& experiment, const CampaignPart& part, const ExperimentRun& options)
      : experiment_(experiment), options_(options), time_limit_(part.time_limit), keys_(experiment.pending(part)) {}

  int64_t pending() const { return std::ssize(keys_); }

  std::optional<record::TrialKey> next() override {
    const double now = system_seconds();
    const bool is_late = given_ > 0 && time_limit_ > 0 && now - began_ + longest_ > time_limit_;
    if (given_ == keys_.size() || is_late) return std::nullopt;
    const record::TrialKey& key = keys_[given_++];
    started_[{key.cell, key.index}] = now;
    return key;
  }

  trials::Task task(const record::TrialKey& first) override {
    trials::Task task;
    task.folder = options_.folder / std::to_string(++tasks_);
    task.arguments = options_.arguments;
    task.arguments.insert(task.arguments.end(), {"--worker", "--quiet"});
    if (!options_.travels) {
      fs::create_directories(task.folder);
      task.answers = true;
      return task;
    }
    put_preparation(experiment_.folder(), task.folder / kFolder);
    task.input = trials::line_of(first) + "\n";
    task.arguments.insert(task.arguments.end(),
                          {"--out", "{folder}", "--folder", fmt::format("{{folder}}/{}", kFolder)});
    task.wanted = {fmt::format("{}/experiment.json", kFolder), fmt::format("{}/campaign.sqlite", kFolder)};
    for (const char* name : kRunFiles) task.wanted.push_back(fmt::format("{}/{}/{}", kFolder, kRun, name));
    task.directory = fs::current_path().string();
    task.variables = {{"OMP_NUM_THREADS", "1"}};  // a task has one processor
    return task;
  }

  void answered(const record::TrialKey& key, const std::string&) override { note(key); }

  void ended(const record::TrialKey& key, const trials::Task& task, const trials::TaskEnd&) override {
    restore_run(task.folder / kFolder);
    (void)experiment_.merge({{task.folder / kFolder, fmt::format("the worker of arm '{}'", key.cell)}});
    fs::remove_all(task.folder);
    note(key);
  }

  // A mistake in the recipe is every trial's, so one that fails ends the experiment, with its own words and status.
  void failed(const record::TrialKey& key, const trials::Task& task, const trials::TaskEnd& end) override {
    const std::string words = trials::error_line(task.folder);
    const bool says_why = end.error.empty() && !end.was_killed() && WIFEXITED(end.status) && !words.empty();
    const std::string why = says_why ? words : end.sentence();
    throw Error(says_why ? static_cast<ExitCode>(WEXITSTATUS(end.status)) : ExitCode::kRuntime,
                why.starts_with("arm '") ? why : fmt::format("arm '{}', seed {}: {}", key.cell, key.index, why));
  }

 private:
  void note(const record::TrialKey& key) {
    longest_ = std::max(longest_, system_seconds() - started_[{key.cell, key.index}]);
    if (options_.on_done) options_.on_done();
  }

  Experiment& experiment_;
  ExperimentRun options_;
  double time_limit_;
  std::vector<record::TrialKey> keys_;
  std::size_t given_ = 0;
  int64_t tasks_ = 0;
  double began_ = system_seconds(), longest_ = 0;
  std::map<std::pair<std::string, int64_t>, double> started_;
};

}  // namespace

ExperimentBench::ExperimentBench(Experiment& experiment, lab::LoadedModel& loaded, ExperimentProgress progress)
    : experiment_(experiment), loaded_(loaded), progress_(std::move(progress)), start_(*loaded.model) {}

ExperimentBench::~ExperimentBench() { start_.restore(*loaded_.model); }

std::string ExperimentBench::answer(const std::string& line) {
  const record::TrialKey key = trials::trial_of(line);
  return to_json_text({{"ran", experiment_.run(loaded_, start_, key, progress_)}});
}

trials::RunnerEnd run_experiment(trials::Executor& executor, Experiment& experiment, const CampaignPart& part,
                                 const ExperimentRun& options) {
  ExperimentWork work(experiment, part, options);
  return trials::run(executor, work, work.pending());
}

void offer_run(const fs::path& folder) {
  fs::create_directory_symlink(fs::path("trials") / run_of(folder), folder / kRun);
}

}  // namespace faultline::experiment
