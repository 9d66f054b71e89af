#include "cli/experiment_workers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "base/error.h"
#include "record/environment.h"
#include "record/file_descriptor.h"

namespace faultline::cli {
namespace {

constexpr std::size_t kMaxLog = std::size_t{1} << 26;
constexpr int kMaxDeaths = 20;  // without one trial finished in between

std::filesystem::path log_of(const WorkerOptions& options, int64_t worker) {
  return options.folder / fmt::format("worker-{}.log", worker);
}

pid_t start(const WorkerOptions& options, int64_t worker) {
  std::vector<std::string> words = {"/proc/self/exe"};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  words.emplace_back("--worker");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const std::string log = log_of(options, worker).string();
  const std::string threads =
      std::to_string(std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()) / options.jobs));
  std::map<std::string, std::string> variables = inherited_environment();
  variables.try_emplace("OMP_NUM_THREADS", threads);
  ChildEnvironment environment(variables);
  const pid_t parent = ::getpid(), id = ::fork();
  if (id < 0) throw RuntimeFailure(fmt::format("cannot start a worker: {}", std::strerror(errno)));
  if (id != 0) return id;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever stops the experiment stops its workers
  if (::getppid() != parent) ::_exit(127);
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0 || ::dup2(file, 1) < 0 || ::dup2(file, 2) < 0) ::_exit(127);
  ::execve(words[0].c_str(), pointers.data(), environment.get());
  ::_exit(127);
}

struct Workers {
  std::map<pid_t, int64_t> running;  // process -> number
  ~Workers() {
    for (const auto& [id, worker] : running) ::kill(id, SIGKILL), ::waitpid(id, nullptr, 0);
  }
};

[[noreturn]] void fail(const WorkerOptions& options, int64_t worker, int status) {
  std::string text = read_file(log_of(options, worker), kMaxLog);
  const std::size_t said = text.rfind("error: ");
  text = said == std::string::npos ? fmt::format("worker {} exited with status {}", worker, status)
                                   : text.substr(said + 7);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  throw Error(static_cast<ExitCode>(status), text);
}

}  // namespace

void run_workers(const WorkerOptions& options) {
  Workers workers;
  int64_t left = options.left();
  int deaths = 0;
  for (int64_t worker = 0; worker < std::min(options.jobs, left); ++worker)
    workers.running.emplace(start(options, worker), worker);
  while (!workers.running.empty()) {
    int status = 0;
    const pid_t id = ::waitpid(-1, &status, WNOHANG);
    if (id <= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    } else if (const auto found = workers.running.find(id); found != workers.running.end()) {
      const int64_t worker = found->second;
      workers.running.erase(found);
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0) fail(options, worker, WEXITSTATUS(status));
      if (WIFSIGNALED(status)) {
        if (++deaths > kMaxDeaths)
          throw RuntimeFailure(
              fmt::format("workers died {} times without finishing a trial, the last by signal {}; see {}", deaths,
                          WTERMSIG(status), log_of(options, worker).string()));
        workers.running.emplace(start(options, worker), worker);
      }
    }
    const int64_t now = options.left();
    if (now == left) continue;
    if (options.on_left) options.on_left(now);
    left = now, deaths = 0;
  }
}

}  // namespace faultline::cli
