// One runner for every kind of trial: what is answered is done, what is killed is tried again, what ends by itself is
// not.
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <map>

#include "base/files/temporary_folder.h"
#include "trials/runner.h"

namespace faultline::trials {
namespace trials_test {

// Hands out so many trials and keeps what becomes of them.
struct Keeper : Work {
  explicit Keeper(int64_t count, bool answers = true) : count(count), answers(answers) {}
  std::optional<record::TrialKey> next() override {
    if (given == count) return std::nullopt;
    return record::TrialKey{"cell", given++};
  }
  Task task(const record::TrialKey&) override {
    ++tasks;
    Task task;
    task.answers = answers;
    return task;
  }
  void answered(const record::TrialKey& key, const std::string& line) override { done[key.index] = line; }
  void ended(const record::TrialKey& key, const Task&, const TaskEnd&) override { done[key.index] = "ended"; }
  void failed(const record::TrialKey& key, const Task&, const TaskEnd& end) override {
    failures[key.index] = end.sentence();
  }

  int64_t count, given = 0, tasks = 0;
  bool answers;
  std::map<int64_t, std::string> done, failures;
};

constexpr int kKilled = 9, kFailed = 3 << 8;

// Answers what it is given with "yes", `slots` tasks at a time. Ends with this status where a trial of `bad` is first.
class FakeExecutor : public Executor {
 public:
  explicit FakeExecutor(int slots, bool takes_lines = true) : slots_(slots), takes_lines_(takes_lines) {}
  int slots() const override { return slots_; }
  bool takes_lines() const override { return takes_lines_; }
  int64_t start(const Task& task) override {
    EXPECT_LE(std::ssize(tasks_) + 1, slots_);
    State& state = tasks_[++last_];
    for (std::size_t begin = 0, end; (end = task.input.find('\n', begin)) != std::string::npos; begin = end + 1)
      state.lines.push_back(task.input.substr(begin, end - begin));
    longest = std::max(longest, std::ssize(state.lines));
    state.closed = !takes_lines_ || !task.answers, state.answers = task.answers;
    return last_;
  }
  void give(int64_t task, const std::string& line) override { tasks_.at(task).lines.push_back(line); }
  void close(int64_t task) override { tasks_.at(task).closed = true; }
  Event wait() override {
    for (auto& [number, state] : tasks_) {
      Event event{number, {}, {}};
      if (!state.lines.empty() && state.answers) {
        const int64_t index = trial_of(state.lines.front()).index;
        if (const auto found = bad.find(index); found != bad.end() && found->second.second-- > 0)
          return ended(number, found->second.first);
        state.lines.pop_front();
        event.answer = "yes";
        return event;
      }
      if (state.closed) return ended(number, end_status);
    }
    ADD_FAILURE() << "nobody would ever answer";
    return {};
  }

  std::map<int64_t, std::pair<int, int>> bad;  // trial -> status, how often
  int end_status = 0;
  int64_t longest = 0;  // lines that a task began with

 private:
  struct State {
    std::deque<std::string> lines;
    bool closed = false, answers = true;
  };
  Event ended(int64_t number, int status) {
    tasks_.erase(number);
    Event event{number, {}, TaskEnd{}};
    event.end->status = status;
    return event;
  }
  int slots_;
  bool takes_lines_;
  int64_t last_ = 0;
  std::map<int64_t, State> tasks_;
};

TEST(Runner, GivesTrialsOneByOneToWorkersThatTakeLines) {
  Keeper work(20);
  FakeExecutor executor(3);
  const RunnerEnd end = run(executor, work, 20);
  EXPECT_EQ(work.done.size(), 20u);
  EXPECT_EQ(work.tasks, 3);
  EXPECT_EQ(executor.longest, 1);
  EXPECT_EQ(end.lost, 0);
}

TEST(Runner, GivesSeveralAtOnceWhereNoneCanFollow) {
  Keeper work(48);
  FakeExecutor executor(3, /*takes_lines=*/false);
  run(executor, work, 48);
  EXPECT_EQ(work.done.size(), 48u);
  EXPECT_EQ(executor.longest, 4);
}

TEST(Runner, TriesATrialAgainWhoseProcessWasKilledAndNotThoseBehindIt) {
  Keeper work(48);
  FakeExecutor executor(1, /*takes_lines=*/false);
  executor.bad[3] = {kKilled, 2};
  const RunnerEnd end = run(executor, work, 48);
  EXPECT_EQ(work.done.size(), 48u);
  EXPECT_GE(end.lost, 2);
  EXPECT_TRUE(work.failures.empty());
}

TEST(Runner, GivesUpATrialThatKillsItsProcessEveryTime) {
  Keeper work(12);
  FakeExecutor executor(2);
  executor.bad[3] = {kKilled, 1000};
  run(executor, work, 12);
  EXPECT_EQ(work.done.size(), 11u);
  ASSERT_EQ(work.failures.size(), 1u);
  EXPECT_EQ(work.failures[3], "its process was ended by signal 9");
  EXPECT_EQ(1000 - executor.bad[3].second, kTriesOfATrial);
}

TEST(Runner, EndsWhereProcessesDieOneAfterTheOther) {
  Keeper work(100);
  FakeExecutor executor(2);
  for (int64_t i = 0; i < 100; ++i) executor.bad[i] = {kKilled, 1000};
  EXPECT_THROW(run(executor, work, 100), RuntimeFailure);
}

TEST(Runner, TriesNothingAgainThatEndedByItself) {
  Keeper work(4);
  FakeExecutor executor(1);
  executor.bad[2] = {kFailed, 1000};
  run(executor, work, 4);
  EXPECT_EQ(work.done.size(), 3u);
  EXPECT_EQ(work.failures[2], "its process exited with status 3");
}

TEST(Runner, TakesTheEndOfAProcessForTheResultOfItsOneTrial) {
  Keeper work(5, /*answers=*/false);
  FakeExecutor executor(2);
  run(executor, work, 5);
  EXPECT_EQ(work.done.size(), 5u);
  EXPECT_EQ(work.done[4], "ended");
  EXPECT_EQ(work.tasks, 5);
}

TEST(Local, RunsTheProgramInAFolderOfItsOwnAndSaysHowItEnded) {
  const TemporaryFolder folder;
  const auto executor = local_executor(1);
  Task task;
  task.folder = folder.path();
  task.arguments = {"--gtest_list_tests", "--gtest_filter=Local.*"};  // this program is the test
  const TaskEnd end = run_alone(*executor, task);
  EXPECT_TRUE(end.is_good()) << end.sentence();
  EXPECT_EQ(error_line(folder.path()), "  EndsAtItsTimeLimit");
}

TEST(Local, EndsAtItsTimeLimit) {
  const TemporaryFolder folder;
  const auto executor = local_executor(1);
  Task task;
  task.folder = folder.path();
  task.arguments = {"--gtest_filter=Sleeper.*"};
  task.variables = {{"FAULTLINE_TEST_SLEEPS", "1"}};
  task.timeout = 0.2;
  const TaskEnd end = run_alone(*executor, task);
  EXPECT_TRUE(end.timed_out);
  EXPECT_FALSE(end.was_killed());
}

TEST(Sleeper, SleepsWhereItIsAskedTo) {
  if (std::getenv("FAULTLINE_TEST_SLEEPS") != nullptr) ::sleep(1000);
}

TEST(Line, IsReadBack) {
  const record::TrialKey key{"gain | linear", 17};
  EXPECT_EQ(trial_of(line_of(key)), key);
  for (const char* line : {"", "[]", R"({"cell": 1, "index": 2})", R"({"cell": "a"})"})
    EXPECT_THROW((void)trial_of(line), RuntimeFailure) << line;
}

}  // namespace trials_test
}  // namespace faultline::trials
