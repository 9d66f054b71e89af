#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <thread>

#include "base/error.h"
#include "base/files/file.h"
#include "base/machine.h"
#include "record/environment.h"
#include "trials/executor.h"

namespace faultline::trials {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookEvery = 10;  // milliseconds, for ends and time limits; answers wake us at once

struct Pipe {
  FileDescriptor read, write;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw RuntimeFailure(fmt::format("cannot make a pipe for a trial: {}", std::strerror(errno)));
    read = FileDescriptor(ends[0]), write = FileDescriptor(ends[1]);
  }
};

struct Process {
  pid_t id = -1;
  FileDescriptor input, output;
  std::string received;
  Clock::time_point begin;
  double timeout = 0, grace = 0;
};

// After the fork: nothing that allocates.
[[noreturn]] void become(const char* program, char* const* arguments, char* const* environment, pid_t parent, int input,
                         int output, const char* log) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever stops the campaign stops its trials
  const int file = ::open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool placed = ::getppid() == parent && ::dup2(input, 0) >= 0 && file >= 0 &&
                      ::dup2(output >= 0 ? output : file, 1) >= 0 && ::dup2(file, 2) >= 0;
  std::signal(SIGPIPE, SIG_DFL);
  if (placed) ::execve(program, arguments, environment);
  ::_exit(127);
}

std::map<std::string, std::string> variables_of(const Task& task, int slots) {
  std::map<std::string, std::string> all = record::inherited_environment();
  const int share = static_cast<int>(std::thread::hardware_concurrency()) / slots;
  if (slots > 1) all.try_emplace("OMP_NUM_THREADS", std::to_string(std::max(1, share)));
  for (const auto& [name, value] : task.variables) all[name] = value;
  return all;
}

std::string with_folder(std::string word, const std::string& folder) {
  constexpr std::string_view kPlace = "{folder}";
  if (const std::size_t at = word.find(kPlace); at != std::string::npos) word.replace(at, kPlace.size(), folder);
  return word;
}

class Local : public Executor {
 public:
  explicit Local(int slots) : slots_(slots), program_(own_program().string()) { (void)interruption(); }
  ~Local() override {
    for (auto& [number, process] : running_) end(process);
  }

  int slots() const override { return slots_; }
  bool takes_lines() const override { return true; }

  int64_t start(const Task& task) override {
    std::vector<std::string> words = {program_};
    for (const std::string& word : task.arguments) words.push_back(with_folder(word, task.folder.string()));
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    record::ChildEnvironment environment(variables_of(task, slots_));
    const std::string log = (task.folder / "log.txt").string();
    Pipe input, output;
    Process process;
    process.begin = Clock::now(), process.timeout = task.timeout, process.grace = task.grace;
    const pid_t parent = ::getpid();
    process.id = ::fork();
    if (process.id < 0) throw RuntimeFailure(fmt::format("cannot start a trial: {}", std::strerror(errno)));
    if (process.id == 0)
      become(program_.c_str(), arguments.data(), environment.get(), parent, input.read.get(),
             task.answers ? output.write.get() : -1, log.c_str());
    ::setpgid(process.id, process.id);  // here, too: whoever ends the group at once finds one
    process.input = std::move(input.write);
    if (task.answers) process.output = std::move(output.read);
    const int64_t number = ++last_;
    const auto [found, _] = running_.emplace(number, std::move(process));
    write(found->second, task.input);
    if (!task.answers) close(number);
    return number;
  }

  void give(int64_t task, const std::string& line) override { write(running_.at(task), line + "\n"); }
  void close(int64_t task) override { running_.at(task).input = FileDescriptor(); }

  Event wait() override {
    FL_ASSERT(!running_.empty() || !events_.empty());
    for (;;) {
      if (*interruption()) return interrupted();
      if (!events_.empty()) {
        Event event = std::move(events_.front());
        events_.pop_front();
        return event;
      }
      read_answers();
      if (events_.empty()) reap_children();
    }
  }

 private:
  // A task that has ended shows when its output does.
  static void write(const Process& process, std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(process.input.get(), text.data(), text.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
  }

  void read_answers() {
    std::vector<pollfd> waiting;
    std::vector<int64_t> tasks;
    for (const auto& [number, process] : running_)
      if (process.output.is_open()) waiting.push_back({process.output.get(), POLLIN, 0}), tasks.push_back(number);
    if (::poll(waiting.data(), waiting.size(), kLookEvery) < 0 && errno != EINTR)
      throw RuntimeFailure(fmt::format("cannot wait for trials: {}", std::strerror(errno)));
    for (std::size_t i = 0; i < waiting.size(); ++i)
      if (waiting[i].revents != 0) read_some(tasks[i], running_.at(tasks[i]));
  }

  void read_some(int64_t number, Process& process) {
    char buffer[65536];
    const ssize_t count = ::read(process.output.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) return;
    if (count <= 0) {
      process.output = FileDescriptor();
      return;
    }
    process.received.append(buffer, static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end; (end = process.received.find('\n', begin)) != std::string::npos; begin = end + 1)
      events_.push_back({number, process.received.substr(begin, end - begin), {}});
    process.received.erase(0, begin);
  }

  // One whose output is still open may have said something that was not read yet.
  void reap_children() {
    for (auto at = running_.begin(); at != running_.end();) {
      Process& process = at->second;
      const double seconds = std::chrono::duration<double>(Clock::now() - process.begin).count();
      TaskEnd ended;
      ended.seconds = seconds;
      ended.timed_out = process.timeout > 0 && seconds > process.timeout;
      if (ended.timed_out)
        end(process);
      else if (process.output.is_open() || ::waitpid(process.id, &ended.status, WNOHANG) != process.id) {
        ++at;
        continue;
      }
      ::kill(-process.id, SIGKILL);  // whatever it left behind
      events_.push_back({at->first, {}, ended});
      at = running_.erase(at);
    }
  }

  Event interrupted() {
    FL_ASSERT(!running_.empty());
    Event event{running_.begin()->first, {}, TaskEnd{}};
    event.end->interrupted = true;
    for (auto& [number, process] : running_) end(process);
    running_.clear();
    return event;
  }

  static void end(Process& process) {
    if (process.grace > 0) {
      const auto last = Clock::now() + std::chrono::duration<double>(process.grace);
      ::kill(process.id, SIGTERM);
      while (Clock::now() < last && ::waitpid(process.id, nullptr, WNOHANG) == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(kLookEvery));
    }
    ::kill(-process.id, SIGKILL);
    ::kill(process.id, SIGKILL);  // before it had a group
    while (::waitpid(process.id, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  int slots_;
  std::string program_;
  int64_t last_ = 0;
  std::map<int64_t, Process> running_;
  std::deque<Event> events_;
};

}  // namespace

std::unique_ptr<Executor> local_executor(int slots) { return std::make_unique<Local>(slots); }

}  // namespace faultline::trials
