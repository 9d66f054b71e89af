#include "cli/ray_experiment.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/error.h"
#include "cli/ray_options.h"
#include "record/clock.h"
#include "record/file_descriptor.h"

namespace faultline::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxRemoteLog = std::size_t{1} << 20;
constexpr int kTriesOfAKilledTrial = 3;  // of one whose process is killed
constexpr const char* kFolder = "experiment";
constexpr const char* kRun = "run";  // what offer_run calls the run directory

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

RemoteTask task_of(const TrialKey& key, const Experiment& experiment, const RayExperiment& options,
                   const fs::path& folder) {
  put_preparation(experiment.folder(), folder / kFolder);
  RemoteTask task;
  task.folder = folder;
  task.arguments = options.arguments;
  const std::string arm = options.part.pilot ? key.cell.substr(pilot_cell("").size()) : key.cell;
  for (const std::string& word :
       {std::string("--arms"), arm, std::string("--seeds"), std::to_string(key.index), std::string("--out"),
        std::string("{folder}"), std::string("--folder"), fmt::format("{{folder}}/{}", kFolder),
        std::string("--worker"), std::string("--quiet")})
    task.arguments.push_back(word);
  if (options.part.pilot) task.arguments.emplace_back("--pilot");
  task.wanted = {fmt::format("{}/experiment.json", kFolder), fmt::format("{}/campaign.sqlite", kFolder)};
  for (const char* name : kRunFiles) task.wanted.push_back(fmt::format("{}/{}/{}", kFolder, kRun, name));
  task.directory = fs::current_path().string();
  task.variables = {{"OMP_NUM_THREADS", "1"}};  // a task has one processor
  return task;
}

[[noreturn]] void fail(const TrialKey& key, const RemoteEnd& end, const fs::path& folder) {
  const std::string who = fmt::format("arm '{}', seed {}: ", key.cell, key.index);
  if (!end.error.empty()) throw RuntimeFailure(who + end.error);
  std::string text = read_file(folder / "log.txt", kMaxRemoteLog);
  if (const std::size_t said = text.rfind("error: "); said != std::string::npos) text = text.substr(said + 7);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (WIFSIGNALED(end.status))
    throw RuntimeFailure(
        fmt::format("{}its process was ended by signal {}, {} times", who, WTERMSIG(end.status), kTriesOfAKilledTrial));
  throw Error(static_cast<ExitCode>(WEXITSTATUS(end.status)), who + text);
}

// The path below trials/ that the record of a task's one trial names. It comes from a worker and is used before merge()
// looks at the record.
fs::path run_of(const fs::path& folder) {
  fs::path run;
  CampaignStore(folder / "campaign.sqlite", StoreUse::kRead).for_each([&](Trial&& trial) {
    const auto found = trial.outcome.find("run");
    if (found != trial.outcome.end() && found->is_string()) run = found->get<std::string>();
  });
  const bool leaves = std::find(run.begin(), run.end(), "..") != run.end();
  if (run.empty() || run.is_absolute() || leaves)
    throw RuntimeFailure(
        fmt::format("the record of a worker names '{}' as its run, which is no folder below trials/", run.string()));
  return run;
}

struct Running {
  TrialKey key;
  fs::path place;
  double start = 0;
};

// The run directory gets back the name that its record knows.
void restore_run(const fs::path& folder) {
  if (!fs::exists(folder / kRun)) return;
  const fs::path run = folder / "trials" / run_of(folder);
  fs::create_directories(run.parent_path());
  fs::rename(folder / kRun, run);
}

}  // namespace

void offer_run(const fs::path& folder) {
  fs::create_directory_symlink(fs::path("trials") / run_of(folder), folder / kRun);
}

void run_on_ray(Experiment& experiment, RayCluster& cluster, const RayExperiment& options) {
  const double began = system_seconds();
  const std::vector<TrialKey> pending = experiment.pending(options.part);
  std::deque<TrialKey> left(pending.begin(), pending.end());
  std::map<int64_t, Running> running;
  std::map<std::pair<std::string, int64_t>, int> tries;
  int64_t started = 0;
  double longest = 0;
  for (;;) {
    const bool is_late = options.part.time_limit > 0 && system_seconds() - began + longest > options.part.time_limit;
    while (!left.empty() && !is_late && std::ssize(running) < cluster.slots()) {
      const fs::path place = options.folder / std::to_string(++started);
      const int64_t task = cluster.start(task_of(left.front(), experiment, options, place));
      running.emplace(task, Running{left.front(), place, system_seconds()});
      left.pop_front();
    }
    if (running.empty()) return;
    const auto [task, end] = cluster.wait_any();
    const auto found = running.find(task);
    if (found == running.end()) fail_without_answer(end);
    const auto [key, place, start] = found->second;
    running.erase(found);
    longest = std::max(longest, system_seconds() - start);
    if (end.error.empty() && WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0) {
      restore_run(place / kFolder);
      const int64_t taken = experiment.merge({{place / kFolder, fmt::format("the worker of arm '{}'", key.cell)}});
      if (options.on_done) options.on_done(taken);
    } else if (end.error.empty() && WIFSIGNALED(end.status) && ++tries[{key.cell, key.index}] < kTriesOfAKilledTrial) {
      left.push_back(key);
    } else {
      fail(key, end, place);
    }
    fs::remove_all(place);
  }
}

}  // namespace faultline::cli
