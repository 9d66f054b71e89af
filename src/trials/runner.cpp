#include "trials/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"

namespace faultline::trials {
namespace {

constexpr int64_t kTasksOfASlot = 4;  // where a process gets its trials at once: so that all end at about the same time
constexpr int64_t kMostTrialsOfATask = 16;
constexpr int kMostDeaths = 20;  // of processes, without one answer in between

struct Running {
  Task task;
  std::deque<record::TrialKey> waiting;  // for their answer; the first is being run
};

class Runner {
 public:
  Runner(Executor& executor, Work& work, int64_t pending) : executor_(executor), work_(work) {
    batch_ = std::clamp<int64_t>(pending / (kTasksOfASlot * executor.slots()), 1, kMostTrialsOfATask);
  }

  RunnerEnd run() {
    while (!*interruption()) {
      while (std::ssize(running_) < executor_.slots() && start()) {
      }
      if (running_.empty()) return end_;
      Event event = executor_.wait();
      const auto found = running_.find(event.task);
      FL_ASSERT(found != running_.end());
      if (event.end && event.end->interrupted) break;
      if (event.answer)
        take(event.task, found->second, *event.answer);
      else
        finish(running_.extract(found).mapped(), *event.end);
    }
    end_.interrupted = true;
    return end_;
  }

 private:
  std::optional<record::TrialKey> next() {
    if (again_.empty()) return work_.next();
    record::TrialKey key = std::move(again_.front());
    again_.pop_front();
    return key;
  }

  // False: nothing is left to begin.
  bool start() {
    std::optional<record::TrialKey> key = next();
    if (!key) return false;
    Running running{work_.task(*key), {*key}};
    Task& task = running.task;
    if (task.answers) {
      task.input += line_of(*key) + "\n";
      while (!executor_.takes_lines() && std::ssize(running.waiting) < batch_ && (key = next())) {
        task.input += line_of(*key) + "\n";
        running.waiting.push_back(*key);
      }
    }
    const int64_t number = executor_.start(task);
    running_.emplace(number, std::move(running));
    return true;
  }

  void take(int64_t number, Running& running, const std::string& line) {
    if (running.waiting.empty())
      throw RuntimeFailure(fmt::format("a worker answered unasked: {}", line.substr(0, 200)));
    deaths_ = 0;
    const record::TrialKey trial = std::move(running.waiting.front());
    running.waiting.pop_front();
    work_.answered(trial, line);
    if (!running.waiting.empty() || !executor_.takes_lines()) return;
    if (const std::optional<record::TrialKey> key = next()) {
      running.waiting.push_back(*key);
      executor_.give(number, line_of(*key));
    } else {
      executor_.close(number);
    }
  }

  void finish(Running running, const TaskEnd& end) {
    if (running.waiting.empty()) return;  // it has answered all
    if (!running.task.answers && work_.is_result(end)) {
      deaths_ = 0;
      work_.ended(running.waiting.front(), running.task, end);
    } else if (end.was_killed()) {
      try_again(running, end);
    } else {
      for (const record::TrialKey& key : running.waiting) work_.failed(key, running.task, end);
    }
  }

  void try_again(Running& running, const TaskEnd& end) {
    if (++deaths_ > kMostDeaths)
      throw RuntimeFailure(
          fmt::format("{} processes were killed without a trial in between; the last: {}", deaths_, end.sentence()));
    const record::TrialKey struck = running.waiting.front();
    if (++tries_[{struck.cell, struck.index}] == kTriesOfATrial) {
      running.waiting.pop_front();
      work_.failed(struck, running.task, end);
    }
    end_.lost += std::ssize(running.waiting);
    for (record::TrialKey& key : running.waiting) again_.push_back(std::move(key));
  }

  Executor& executor_;
  Work& work_;
  int64_t batch_ = 1;
  int deaths_ = 0;
  RunnerEnd end_;
  std::map<int64_t, Running> running_;
  std::deque<record::TrialKey> again_;
  std::map<std::pair<std::string, int64_t>, int> tries_;
};

}  // namespace

RunnerEnd run(Executor& executor, Work& work, int64_t pending) { return Runner(executor, work, pending).run(); }

TaskEnd run_alone(Executor& executor, const Task& task) {
  const int64_t number = executor.start(task);
  for (;;) {
    const Event event = executor.wait();
    FL_ASSERT(event.task == number);
    if (event.end) return *event.end;
  }
}

std::string line_of(const record::TrialKey& trial) {
  return to_json_text(Json{{"cell", trial.cell}, {"index", trial.index}});
}

record::TrialKey trial_of(const std::string& line) {
  const Json json = parse_json_text(line, "a trial");
  if (!json.is_object() || !json.contains("cell") || !json["cell"].is_string() || !json.contains("index") ||
      !json["index"].is_number_integer())
    throw RuntimeFailure(fmt::format("no trial: {}", line.substr(0, 200)));
  return {json["cell"].get<std::string>(), json["index"].get<int64_t>()};
}

}  // namespace faultline::trials
