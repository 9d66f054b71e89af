#include "cli/ray_campaign.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/error.h"
#include "cli/ray_options.h"
#include "diagnose/campaign_records.h"
#include "record/atomic_file.h"
#include "record/file_descriptor.h"

namespace faultline::cli {
namespace {

constexpr int64_t kTasksOfASlot = 4;  // so that slots end at about the same time
constexpr int64_t kMostTrialsOfATask = 16;
constexpr int kTriesOfATrial = 2;
constexpr std::size_t kMaxOutput = std::size_t{1} << 28;

using Done = std::function<void(Trial&&)>;
using Failed = std::function<void(const TrialKey&, const std::string&)>;

std::string how_it_ended(const RemoteEnd& end) {
  return WIFSIGNALED(end.status) ? fmt::format("the worker was ended by signal {}", WTERMSIG(end.status))
                                 : fmt::format("the worker exited with status {}", WEXITSTATUS(end.status));
}

struct Batch {
  std::filesystem::path folder;
  std::deque<TrialKey> keys;
};

// A name of ours ("default") stays; a path must mean the same wherever the task runs.
std::string everywhere(const std::string& model) {
  return std::filesystem::exists(model) ? std::filesystem::absolute(model).string() : model;
}

class RayTrials : public TrialExecutor {
 public:
  RayTrials(RayCluster& cluster, std::filesystem::path folder, CampaignMachine machine, const CampaignSpec& spec,
            int64_t pending)
      : cluster_(cluster), folder_(std::move(folder)) {
    if (machine.threads == 0) machine.threads = 1;  // a task has one processor
    machine.model = everywhere(machine.model);
    request_ = to_json_text(campaign_request(machine, spec)) + "\n";
    batch_ = std::clamp<int64_t>(pending / (kTasksOfASlot * cluster.slots()), 1, kMostTrialsOfATask);
  }

  void run(const std::function<std::optional<TrialKey>()>& next, const Done& done, const Failed& failed) override {
    while (start(next)) {
    }
    while (!running_.empty()) {
      const auto [task, end] = cluster_.wait_any();
      const auto found = running_.find(task);
      if (found == running_.end()) fail_without_answer(end);
      Batch batch = std::move(found->second);
      running_.erase(found);
      take(batch, end, done, failed);
      while (start(next)) {
      }
    }
  }

 private:
  // False: all slots are busy, or nothing is left.
  bool start(const std::function<std::optional<TrialKey>()>& next) {
    if (std::ssize(running_) >= cluster_.slots()) return false;
    Batch batch;
    std::string input = request_;
    while (std::ssize(batch.keys) < batch_) {
      std::optional<TrialKey> key;
      if (again_.empty()) {
        key = next();
      } else {
        key = again_.front();
        again_.pop_front();
      }
      if (!key) break;
      input += to_json_text(Json{{"cell", key->cell}, {"index", key->index}}) + "\n";
      batch.keys.push_back(std::move(*key));
    }
    if (batch.keys.empty()) return false;
    RemoteTask task;
    batch.folder = task.folder = folder_ / std::to_string(++started_);
    std::filesystem::create_directories(task.folder);
    write_file_atomically(task.folder / "trials.jsonl", input);
    task.arguments = {"diagnose", "--worker", "--quiet"};
    task.input = "trials.jsonl", task.output = "records.jsonl", task.wanted = {"records.jsonl"};
    running_.emplace(cluster_.start(task), std::move(batch));
    return true;
  }

  // A line for each trial, in their order; a worker that died left those it had finished.
  void take(Batch& batch, const RemoteEnd& end, const Done& done, const Failed& failed) {
    std::deque<TrialKey>& keys = batch.keys;
    const std::filesystem::path file = batch.folder / "records.jsonl";
    const std::string text = std::filesystem::exists(file) ? read_file(file, kMaxOutput) : "";
    for (std::size_t begin = 0, stop; !keys.empty() && (stop = text.find('\n', begin)) != std::string::npos;
         begin = stop + 1) {
      const Json line = parse_json_text(text.substr(begin, stop - begin), "a worker");
      if (line.contains("error"))
        failed(keys.front(), line["error"].get<std::string>());
      else if (Trial trial = trial_from_record(line, "a worker"); trial.key == keys.front())
        done(std::move(trial));
      else
        failed(keys.front(), "a worker answered another trial than it was asked for");
      keys.pop_front();
    }
    for (const TrialKey& key : keys) {
      if (end.error.empty() && ++tries_[{key.cell, key.index}] < kTriesOfATrial)
        again_.push_back(key);
      else
        failed(key, end.error.empty() ? how_it_ended(end) : end.error);
    }
    std::filesystem::remove_all(batch.folder);
  }

  RayCluster& cluster_;
  std::filesystem::path folder_;
  std::string request_;
  int64_t batch_ = 1, started_ = 0;
  std::map<int64_t, Batch> running_;  // by task
  std::deque<TrialKey> again_;
  std::map<std::pair<std::string, int64_t>, int> tries_;
};

}  // namespace

std::unique_ptr<TrialExecutor> ray_trials(RayCluster& cluster, const std::filesystem::path& folder,
                                          const CampaignMachine& machine, const CampaignSpec& spec, int64_t pending) {
  return std::make_unique<RayTrials>(cluster, folder, machine, spec, pending);
}

}  // namespace faultline::cli
