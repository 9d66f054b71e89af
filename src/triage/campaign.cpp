#include "triage/campaign.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>

#include "base/rng.h"
#include "record/atomic_file.h"
#include "record/campaign_store.h"
#include "record/clock.h"
#include "record/directory_lock.h"
#include "record/document.h"
#include "triage/flights.h"
#include "triage/report.h"

namespace faultline::triage {
namespace {

constexpr const char* kStore = "campaign.sqlite";
constexpr size_t kMaxLog = size_t{64} << 10;  // of a trial's log, kept with its evidence
constexpr const char* kWarmup = "warm-up";  // no cell can be called so: it would be refused as the cell of another plan

std::string log_of(const std::filesystem::path& folder) {
  std::ifstream file(folder / "log.txt", std::ios::binary);
  std::string text(kMaxLog, '\0');
  file.read(text.data(), static_cast<std::streamsize>(kMaxLog));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

TrialStatus status_of(TrialVerdict verdict) {
  return verdict == TrialVerdict::kPass   ? TrialStatus::kPass
         : verdict == TrialVerdict::kFail ? TrialStatus::kFail
                                          : TrialStatus::kError;
}

RecordedTrial recorded(const Trial& trial) {
  RecordedTrial found;
  found.cell = trial.key.cell;
  found.index = trial.key.index;
  found.seed = trial.seed;
  found.result.verdict = trial.status == TrialStatus::kPass   ? TrialVerdict::kPass
                         : trial.status == TrialStatus::kFail ? TrialVerdict::kFail
                                                              : TrialVerdict::kError;
  found.result.outcome = trial.outcome.at("outcome");
  found.result.severity = trial.outcome.at("severity");
  found.result.sentence = trial.outcome.at("sentence");
  found.result.seconds = trial.outcome.at("seconds");
  found.result.result = trial.evidence.at("result");
  found.log = trial.evidence.at("log");
  if (found.result.verdict != TrialVerdict::kError) (void)sums_of(found.result.result);
  return found;
}

class Campaign {
 public:
  Campaign(const Plan& plan, Executor& executor, const CampaignOptions& options)
      : plan_(plan),
        executor_(executor),
        options_(options),
        lock_(locked(prepared(options.folder))),
        store_(options.folder / kStore) {
    std::filesystem::create_directories(options.folder / "trials");
    remove_stale_temporaries(options.folder);
    write_file_atomically(options.folder / "recipe.resolved.yaml", to_yaml(plan.resolved));
    if (const auto made_by = options.folder / "provenance.json";
        options.provenance.is_object() && !std::filesystem::exists(made_by))
      write_document(made_by, "provenance", options.provenance);
    load();
  }

  CampaignResult run() {
    CampaignResult result;
    result.resumed = static_cast<int64_t>(trials_.size());
    if (plan_.warmup_trial && trials_.empty()) warm_up();
    Flights flights;
    for (const Turn& turn : order_of(plan_)) {
      const Cell& cell = plan_.cells[turn.cell];
      if (done_.contains({cell.name, turn.index})) continue;
      if (flights.count() >= executor_.slots()) result.ran += land(flights);
      if (interrupted()) break;
      if (!stopped(cell)) start(flights, cell, turn.index);
    }
    while (flights.count() > 0) result.ran += land(flights);
    result.interrupted = interrupted();
    result.matrix = summarise(plan_, trials_);
    write_report(options_.folder, plan_, result.matrix, trials_);
    return result;
  }

 private:
  static std::filesystem::path prepared(const std::filesystem::path& folder) {
    namespace fs = std::filesystem;
    if (fs::exists(folder) && !fs::is_directory(folder))
      throw UsageError(fmt::format("{} is a file; --out wants a folder", folder.string()));
    if (fs::exists(folder) && !fs::is_empty(folder) && !fs::exists(folder / kStore) && !fs::exists(folder / "lock"))
      throw UsageError(fmt::format("{} holds something else than a triage; choose another folder", folder.string()));
    fs::create_directories(folder);
    return folder;
  }

  static DirectoryLock locked(const std::filesystem::path& folder) {
    try {
      return DirectoryLock(folder);
    } catch (const RuntimeFailure& in_use) {
      throw UsageError(in_use.what());
    }
  }

  bool interrupted() const { return options_.interrupted != nullptr && *options_.interrupted; }

  // Trials of earlier calls. A trial of another request is another experiment.
  void load() {
    store_.for_each([&](Trial&& trial) {
      const auto cell =
          std::find_if(plan_.cells.begin(), plan_.cells.end(), [&](const Cell& c) { return c.name == trial.key.cell; });
      if (cell == plan_.cells.end())
        throw UsageError(
            fmt::format("{}: holds trials of a cell '{}', which the recipe does not have; choose another folder",
                        options_.folder.string(), trial.key.cell));
      if (trial.fingerprint != make_request(plan_, *cell, trial.key.index).fingerprint())
        throw UsageError(
            fmt::format("{}: trial {} of cell '{}' was of another request (the recipe or the seed has changed); choose "
                        "another folder",
                        options_.folder.string(), trial.key.index, trial.key.cell));
      try {
        keep(recorded(trial));
      } catch (const nlohmann::json::exception& error) {
        throw RuntimeFailure(
            fmt::format("{}: trial {} of cell '{}' cannot be read: {}; the file was edited or damaged: restore it from "
                        "a copy, or choose another folder",
                        (options_.folder / kStore).string(), trial.key.index, trial.key.cell, error.what()));
      }
    });
    for (const RecordedTrial& trial : trials_) {  // an end between the record and what follows it
      std::filesystem::remove_all(running_folder(trial.cell, trial.index));
      write_trial(trial);  // a copy that was lost or damaged
    }
  }

  void keep(RecordedTrial trial) {
    done_[{trial.cell, trial.index}] = true;
    trials_.push_back(std::move(trial));
  }

  // By the cell's trials so far, in the order of their index: the same when resumed.
  bool stopped(const Cell& cell) const {
    if (plan_.stop_after.events == 0) return false;
    const auto events = std::count_if(trials_.begin(), trials_.end(), [&](const RecordedTrial& t) {
      return t.cell == cell.name && verdict_name(t.result.verdict) == plan_.stop_after.event_verdict;
    });
    return events >= plan_.stop_after.events;
  }

  std::filesystem::path running_folder(const std::string& cell, int64_t index) const {
    return options_.folder / "trials" / fmt::format(".running-{}-{}", cell, index);
  }

  static std::filesystem::path made_anew(const std::filesystem::path& folder) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    return folder;
  }

  void warm_up() {
    TrialRequest request = make_request(plan_, plan_.baseline_cell(), 0);
    request.config["verify_iterations"] = 1;
    const std::filesystem::path folder = made_anew(options_.folder / "trials" / fmt::format(".{}", kWarmup));
    (void)executor_.run(request, folder);
    std::filesystem::remove_all(folder);
  }

  void start(Flights& flights, const Cell& cell, int64_t index) {
    Flight flight;
    flight.request = make_request(plan_, cell, index);
    flight.folder = made_anew(running_folder(cell.name, index));
    flight.started = system_seconds();
    flights.start(std::move(flight), executor_);
  }

  // Waits for the trial that ends next and records it. -> 0 where it was interrupted: such a trial never happened
  int land(Flights& flights) {
    auto [flight, result] = flights.wait();
    const std::string& name = flight.request.cell;
    const int64_t index = flight.request.index;
    const std::filesystem::path& folder = flight.folder;
    const TrialRequest& request = flight.request;
    if (interrupted()) {
      std::filesystem::remove_all(folder);
      return 0;
    }
    RecordedTrial trial{name, index, request.seed, std::move(result), log_of(folder)};
    Trial row;
    row.key = {name, index};
    row.seed = request.seed;
    row.status = status_of(trial.result.verdict);
    row.started = flight.started;
    row.finished = system_seconds();
    row.fingerprint = request.fingerprint();
    row.outcome = {{"outcome", trial.result.outcome},
                   {"severity", trial.result.severity},
                   {"sentence", trial.result.sentence},
                   {"seconds", trial.result.seconds}};
    row.evidence = {{"result", trial.result.result}, {"log", trial.log}};
    FL_ASSERT(store_.insert(row));
    std::filesystem::remove_all(folder);
    write_trial(trial);
    if (options_.on_trial) options_.on_trial(trial, static_cast<int64_t>(trials_.size()) + 1, plan_.total_trials());
    keep(std::move(trial));
    return 1;
  }

  void write_trial(const RecordedTrial& trial) const {
    const std::filesystem::path folder = options_.folder / "trials" / trial.cell;
    std::filesystem::create_directories(folder);
    const Json json = {{"cell", trial.cell},
                       {"index", trial.index},
                       {"seed", std::to_string(trial.seed)},
                       {"verdict", verdict_name(trial.result.verdict)},
                       {"outcome", trial.result.outcome},
                       {"severity", trial.result.severity},
                       {"sentence", trial.result.sentence},
                       {"seconds", trial.result.seconds},
                       {"result", trial.result.result}};
    write_file_atomically(folder / fmt::format("{:04}.json", trial.index), to_json_text(json, 1) + "\n");
    if (plan_.save_logs) write_file_atomically(folder / fmt::format("{:04}.log", trial.index), trial.log);
  }

  const Plan& plan_;
  Executor& executor_;
  CampaignOptions options_;
  DirectoryLock lock_;
  CampaignStore store_;
  std::vector<RecordedTrial> trials_;
  std::map<std::pair<std::string, int64_t>, bool> done_;
};

}  // namespace

std::vector<Turn> order_of(const Plan& plan) {
  std::vector<Turn> turns;
  int64_t longest = 0;
  for (const Cell& cell : plan.cells) longest = std::max(longest, cell.trials);
  for (int64_t index = 0; index < longest; ++index) {
    const Permutation shuffled =
        make_permutation(plan.cells.size(), mix_bits(plan.seed ^ (static_cast<uint64_t>(index) << 32)));
    for (size_t i = 0; i < plan.cells.size(); ++i) {
      const auto cell = static_cast<size_t>(permute(shuffled, i));
      if (index < plan.cells[cell].trials) turns.push_back({cell, index});
    }
  }
  return turns;
}

CampaignResult run_campaign(const Plan& plan, Executor& executor, const CampaignOptions& options) {
  return Campaign(plan, executor, options).run();
}

}  // namespace faultline::triage
