#include "trials/ray_executor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "base/error.h"
#include "base/files/file.h"
#include "base/machine.h"
#include "record/environment.h"

namespace faultline::trials {
namespace {

constexpr int kPollEvery = 100;  // milliseconds, for an interruption
constexpr std::size_t kMaxOutput = std::size_t{1} << 28;
constexpr const char* kInput = "input.txt";
constexpr const char* kAnswers = "answers.jsonl";

std::filesystem::path helper_script(const std::filesystem::path& program) {
  const std::filesystem::path folder = program.parent_path();
  for (const auto& place : {folder / "python", folder / ".." / "python"}) {
    const auto script = place / "faultline" / "ray_executor.py";
    if (std::filesystem::exists(script)) return std::filesystem::canonical(script);
  }
  throw UsageError(fmt::format("--executor ray needs python/faultline/ray_executor.py beside {} or in the folder above",
                               folder.string()));
}

class Ray : public Executor {
 public:
  Ray() {
    const std::filesystem::path program = own_program();
    const char* wish = std::getenv("FAULTLINE_PYTHON");
    start_helper(wish != nullptr && *wish != '\0' ? wish : "python3", helper_script(program).string(),
                 program.string());
    const Json hello = next_message();
    if (hello.contains("error")) {
      leave();
      throw RuntimeFailure(hello.at("error").get<std::string>());
    }
    slots_ = hello.at("slots"), nodes_ = hello.at("nodes");
  }
  ~Ray() override { leave(); }

  int slots() const override { return slots_; }
  Json description() const override { return {{"nodes", nodes_}, {"slots", slots_}}; }

  int64_t start(const Task& task) override {
    const int64_t number = ++last_;
    Task sent = task;
    if (!task.input.empty()) write_file_atomically(task.folder / kInput, task.input);
    if (task.answers) {
      sent.wanted.emplace_back(kAnswers);
      sent.variables.try_emplace("OMP_NUM_THREADS", "1");  // a task has one processor
    }
    send({{"id", number},
          {"folder", std::filesystem::absolute(task.folder).string()},
          {"arguments", task.arguments},
          {"input", task.input.empty() ? "" : kInput},
          {"output", task.answers ? kAnswers : ""},
          {"wanted", sent.wanted},
          {"directory", task.directory},
          {"variables", sent.variables},
          {"inherits", record::inheritance()},
          {"processors", task.processors},
          {"timeout", task.timeout}});
    running_.emplace(number, std::move(sent));
    return number;
  }

  Event wait() override {
    while (events_.empty()) {
      const Json message = next_message();
      const auto found = running_.find(message.value("id", int64_t{0}));
      TaskEnd end;
      end.interrupted = message.value("interrupted", false);
      if (end.interrupted) return {running_.begin()->first, {}, end};
      if (found == running_.end()) throw RuntimeFailure(message.value("error", "the Ray helper answered unasked"));
      end.status = message.value("status", 0);
      end.timed_out = message.value("timed_out", false);
      end.lost = message.value("lost", false);
      end.seconds = message.value("seconds", 0.0);
      end.error = message.value("error", std::string());
      if (found->second.answers) read_answers(found->first, found->second.folder / kAnswers);
      events_.push_back({found->first, {}, end});
      running_.erase(found);
    }
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  void start_helper(const std::string& python, const std::string& script, const std::string& program) {
    std::array<int, 2> in{}, out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0)
      throw RuntimeFailure(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    const char* const arguments[] = {python.c_str(), script.c_str(), program.c_str(), nullptr};
    helper_ = ::fork();
    if (helper_ < 0) throw RuntimeFailure(fmt::format("cannot start {}: {}", python, std::strerror(errno)));
    if (helper_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::setpgid(0, 0);  // an interrupt at the terminal is ours to handle
      ::execvp(python.c_str(), const_cast<char* const*>(arguments));
      ::_exit(127);
    }
    const FileDescriptor its_input(in[0]), its_output(out[1]);
    to_ = FileDescriptor(in[1]), from_ = FileDescriptor(out[0]);
  }

  // The helper's input ends: it leaves the cluster, which ends what still runs there, and exits.
  void leave() {
    to_ = FileDescriptor();
    ::waitpid(helper_, nullptr, 0);
  }

  void send(const Json& message) {
    const std::string line = to_json_text(message) + "\n";
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t n = ::write(to_.get(), line.data() + done, line.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;  // the helper is gone, which shows when we wait for its answer
      done += static_cast<std::size_t>(n);
    }
  }

  // Of a task that was lost, too: what it had answered is done.
  void read_answers(int64_t number, const std::filesystem::path& file) {
    if (!std::filesystem::exists(file)) return;
    const std::string text = read_file(file, kMaxOutput);
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      events_.push_back({number, text.substr(begin, end - begin), {}});
  }

  Json next_message() {
    for (;;) {
      if (*interruption()) return {{"interrupted", true}, {"error", "interrupted"}};
      for (std::size_t end; (end = received_.find('\n')) != std::string::npos;) {
        const std::string line = received_.substr(0, end);
        received_.erase(0, end + 1);
        try {
          Json message = parse_json_text(line, "the helper's answer");
          if (message.is_object() && message.contains("id") && message["id"].is_number_integer()) return message;
        } catch (const RuntimeFailure&) {  // something else that printed to the helper's output
        }
      }
      pollfd waiting{from_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, kPollEvery) <= 0) continue;
      std::array<char, 65536> buffer{};
      const ssize_t n = ::read(from_.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return {{"error", "the Ray helper ended before it answered; its messages are on stderr"}};
      received_.append(buffer.data(), static_cast<std::size_t>(n));
    }
  }

  pid_t helper_ = -1;
  FileDescriptor to_, from_;
  int slots_ = 1;
  int64_t nodes_ = 0, last_ = 0;
  std::map<int64_t, Task> running_;
  std::deque<Event> events_;
  std::string received_;
};

}  // namespace

std::unique_ptr<Executor> ray_executor() { return std::make_unique<Ray>(); }

}  // namespace faultline::trials
