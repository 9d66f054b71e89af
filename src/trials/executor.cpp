#include "trials/executor.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <deque>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text.h"

namespace faultline::trials {
namespace {

constexpr std::size_t kMaxLog = std::size_t{1} << 26;

class InProcess : public Executor {
 public:
  explicit InProcess(std::function<std::string(const std::string&)> serve) : serve_(std::move(serve)) {}

  int slots() const override { return 1; }
  bool takes_lines() const override { return true; }

  int64_t start(const Task& task) override {
    FL_ASSERT(task.answers);
    closed_ = false;
    for (std::size_t begin = 0, end; (end = task.input.find('\n', begin)) != std::string::npos; begin = end + 1)
      lines_.push_back(task.input.substr(begin, end - begin));
    return ++task_;
  }
  void give(int64_t, const std::string& line) override { lines_.push_back(line); }
  void close(int64_t) override { closed_ = true; }

  Event wait() override {
    Event event{task_, {}, {}};
    while (!lines_.empty() && !*interruption()) {
      const std::string line = std::move(lines_.front());
      lines_.pop_front();
      if (std::string answer = serve_(line); !answer.empty()) {
        event.answer = std::move(answer);
        return event;
      }
    }
    FL_ASSERT(closed_ || *interruption());  // or nobody would ever answer
    event.end = TaskEnd{};
    event.end->interrupted = !closed_;
    return event;
  }

 private:
  std::function<std::string(const std::string&)> serve_;
  std::deque<std::string> lines_;
  int64_t task_ = 0;
  bool closed_ = false;
};

}  // namespace

bool TaskEnd::was_killed() const {
  return lost || (error.empty() && !timed_out && !interrupted && WIFSIGNALED(status));
}

bool TaskEnd::is_good() const {
  return error.empty() && !lost && !timed_out && !interrupted && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string TaskEnd::sentence() const {
  if (interrupted) return "interrupted";
  if (!error.empty()) return error;
  if (timed_out) return fmt::format("took longer than {:.3g} s and was ended", seconds);
  if (WIFSIGNALED(status)) return fmt::format("its process was ended by signal {}", WTERMSIG(status));
  return fmt::format("its process exited with status {}", WEXITSTATUS(status));
}

void Executor::give(int64_t, const std::string&) { FL_ASSERT(false); }
void Executor::close(int64_t) { FL_ASSERT(false); }

const std::atomic<bool>* interruption() {
  static std::atomic<bool> interrupted{false};
  static const bool noted = [] {
    for (const int signal : {SIGINT, SIGTERM})
      std::signal(signal, [](int received) {
        interrupted = true;
        std::signal(received, SIG_DFL);
      });
    return true;
  }();
  (void)noted;
  return &interrupted;
}

std::string error_line(const std::filesystem::path& folder) {
  const std::filesystem::path log = folder / "log.txt";
  if (!std::filesystem::exists(log)) return "";
  std::string text = read_file(log, kMaxLog);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (const std::size_t said = text.rfind("error: "); said != std::string::npos) return text.substr(said + 7);
  return text.substr(text.rfind('\n') + 1);  // npos + 1: the whole text
}

std::unique_ptr<Executor> in_process_executor(std::function<std::string(const std::string& line)> serve) {
  return std::make_unique<InProcess>(std::move(serve));
}

}  // namespace faultline::trials
