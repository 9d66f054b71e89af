#include "triage/campaign.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>

#include "base/files/file.h"
#include "base/machine.h"
#include "base/rng.h"
#include "record/campaign_store.h"
#include "record/directory_lock.h"
#include "record/document.h"
#include "triage/command_trial.h"
#include "triage/repetitions.h"
#include "triage/statistics.h"
#include "trials/runner.h"

namespace faultline::triage {
namespace {

constexpr const char* kStore = "campaign.sqlite";
constexpr size_t kMaxLog = size_t{64} << 10;  // of a trial's log, kept with its evidence
constexpr const char* kWarmup = "warm-up";  // no cell can be called so: it would be refused as the cell of another plan

std::string log_of(const std::filesystem::path& folder, bool command) {
  if (command)
    return "--- stdout\n" + ends_of(folder / "stdout.log", kMaxLog / 4) + "\n--- stderr\n" +
           ends_of(folder / "stderr.log", kMaxLog / 4);
  std::ifstream file(folder / "log.txt", std::ios::binary);
  std::string text(kMaxLog, '\0');
  file.read(text.data(), static_cast<std::streamsize>(kMaxLog));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

record::TrialStatus status_of(TrialVerdict verdict) {
  return verdict == TrialVerdict::kPass   ? record::TrialStatus::kPass
         : verdict == TrialVerdict::kFail ? record::TrialStatus::kFail
                                          : record::TrialStatus::kError;
}

RecordedTrial recorded(const record::Trial& trial) {
  RecordedTrial found;
  found.cell = trial.key.cell;
  found.index = trial.key.index;
  found.seed = trial.seed;
  found.result.verdict = trial.status == record::TrialStatus::kPass   ? TrialVerdict::kPass
                         : trial.status == record::TrialStatus::kFail ? TrialVerdict::kFail
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

class Campaign : public trials::Work {
 public:
  Campaign(const Plan& plan, trials::Executor& executor, const CampaignOptions& options)
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
      record::write_document(made_by, "provenance", options.provenance);
    load();
  }

  CampaignResult run() {
    CampaignResult result;
    result.resumed = static_cast<int64_t>(trials_.size());
    if (plan_.warmup_trial && trials_.empty()) warm_up();
    turns_ = order_of(plan_);
    const trials::RunnerEnd end = trials::run(executor_, *this, plan_.total_trials() - result.resumed);
    for (const auto& [key, trial] : running_) std::filesystem::remove_all(trial.folder);  // it never happened
    result.ran = static_cast<int64_t>(trials_.size()) - result.resumed;
    result.interrupted = end.interrupted, result.lost = end.lost;
    if (plan_.repeats())
      for (const RecordedTrial& trial : judge_repetitions(trials_))  // known only now
        if (trial.result.outcome == "differs") write_trial(trial);
    result.matrix = summarise(plan_, trials_);
    write_matrix(options_.folder, plan_, result.matrix);
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

  static record::DirectoryLock locked(const std::filesystem::path& folder) {
    try {
      return record::DirectoryLock(folder);
    } catch (const RuntimeFailure& in_use) {
      throw UsageError(in_use.what());
    }
  }

  // Trials of earlier calls. A trial of another request is another experiment.
  void load() {
    store_.for_each([&](record::Trial&& trial) {
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
      } catch (const Json::exception& error) {
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
    std::vector<RecordedTrial> of_cell;
    std::copy_if(trials_.begin(), trials_.end(), std::back_inserter(of_cell),
                 [&](const RecordedTrial& t) { return t.cell == cell.name; });
    const std::vector<RecordedTrial> judged =
        plan_.repeats() ? judge_repetitions(std::move(of_cell)) : std::move(of_cell);
    const auto events = std::count_if(judged.begin(), judged.end(), [&](const RecordedTrial& t) {
      return verdict_name(t.result.verdict) == plan_.stop_after.event_verdict;
    });
    return events >= plan_.stop_after.events;
  }

  std::filesystem::path running_folder(const std::string& cell, int64_t index) const {
    return options_.folder / "trials" / fmt::format(".running-{}-{}", cell, index);
  }

  void warm_up() {
    TrialRequest request = make_request(plan_, plan_.baseline_cell(), 0);
    if (request.command.empty()) request.config["verify_iterations"] = 1;
    const AskedTrial trial = ask(std::move(request), options_.folder / "trials" / fmt::format(".{}", kWarmup));
    (void)trials::run_alone(executor_, trial.task());
    std::filesystem::remove_all(trial.folder);
  }

  // --- what the runner asks
  std::optional<record::TrialKey> next() override {
    while (turn_ < turns_.size()) {
      const Turn& turn = turns_[turn_++];
      const Cell& cell = plan_.cells[turn.cell];
      if (!done_.contains({cell.name, turn.index}) && !stopped(cell)) return record::TrialKey{cell.name, turn.index};
    }
    return std::nullopt;
  }

  trials::Task task(const record::TrialKey& key) override {
    const auto cell =
        std::find_if(plan_.cells.begin(), plan_.cells.end(), [&](const Cell& one) { return one.name == key.cell; });
    AskedTrial trial = ask(make_request(plan_, *cell, key.index), running_folder(key.cell, key.index));
    return running_.insert_or_assign({key.cell, key.index}, std::move(trial)).first->second.task();
  }

  // However it ends, that is what happened; but for a machine that was lost.
  bool is_result(const trials::TaskEnd& end) const override { return !end.lost; }
  void ended(const record::TrialKey& key, const trials::Task&, const trials::TaskEnd& end) override {
    record(key, end);
  }
  void failed(const record::TrialKey& key, const trials::Task&, const trials::TaskEnd& end) override {
    record(key, end);
  }

  void record(const record::TrialKey& key, const trials::TaskEnd& end) {
    const AskedTrial asked = std::move(running_.extract({key.cell, key.index}).mapped());
    const TrialRequest& request = asked.request;
    RecordedTrial trial{key.cell, key.index, request.seed, read_result(asked, end),
                        log_of(asked.folder, !plan_.command.empty())};
    record::Trial row;
    row.key = key;
    row.seed = request.seed;
    row.status = status_of(trial.result.verdict);
    row.started = asked.started;
    row.finished = system_seconds();
    row.fingerprint = request.fingerprint();
    row.outcome = {{"outcome", trial.result.outcome},
                   {"severity", trial.result.severity},
                   {"sentence", trial.result.sentence},
                   {"seconds", trial.result.seconds}};
    row.evidence = {{"result", trial.result.result}, {"log", trial.log}};
    FL_ASSERT(store_.insert(row));
    keep_output(asked);
    std::filesystem::remove_all(asked.folder);
    write_trial(trial);
    if (options_.on_trial) options_.on_trial(trial, static_cast<int64_t>(trials_.size()) + 1, plan_.total_trials());
    keep(std::move(trial));
  }

  // Of a command: its whole output, which may be large, lies beside the record and not in it.
  void keep_output(const AskedTrial& asked) const {
    if (plan_.command.empty() || !plan_.save_logs) return;
    const std::filesystem::path folder = options_.folder / "trials" / asked.request.cell;
    std::filesystem::create_directories(folder);
    for (const char* stream : {"stdout.log", "stderr.log"})
      if (std::filesystem::exists(asked.folder / stream))
        std::filesystem::rename(asked.folder / stream, folder / fmt::format("{:04}.{}", asked.request.index, stream));
    const std::filesystem::path files = asked.folder / kFilesOfCommand;
    if (!std::filesystem::is_directory(files) || std::filesystem::is_empty(files)) return;
    const std::filesystem::path kept = folder / fmt::format("{:04}.{}", asked.request.index, kFilesOfCommand);
    std::filesystem::remove_all(kept);
    std::filesystem::rename(files, kept);
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
  trials::Executor& executor_;
  CampaignOptions options_;
  record::DirectoryLock lock_;
  record::CampaignStore store_;
  std::vector<RecordedTrial> trials_;
  std::map<std::pair<std::string, int64_t>, bool> done_;
  std::map<std::pair<std::string, int64_t>, AskedTrial> running_;
  std::vector<Turn> turns_;
  std::size_t turn_ = 0;
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

CampaignResult run_campaign(const Plan& plan, trials::Executor& executor, const CampaignOptions& options) {
  return Campaign(plan, executor, options).run();
}

}  // namespace faultline::triage
