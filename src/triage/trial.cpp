#include "triage/trial.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "base/text.h"
#include "record/atomic_file.h"
#include "record/document.h"
#include "record/environment.h"

namespace faultline::triage {
namespace {

using Clock = std::chrono::steady_clock;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string fresh_nonce() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", source(), source(), source(), source());
}

pid_t start(const std::filesystem::path& program, const std::filesystem::path& folder, const Environment& variables) {
  Environment all = inherited_environment();
  std::erase_if(
      all, [](const auto& entry) { return is_launcher_variable(entry.first) && entry.first != "LD_LIBRARY_PATH"; });
  for (const auto& [key, value] : variables) all[key] = value;
  ChildEnvironment environment(all);
  const std::string name = program.string(), where = folder.string(), log = (folder / "log.txt").string();
  const char* const arguments[] = {name.c_str(), "race", "--trial", where.c_str(), nullptr};
  const pid_t parent = ::getpid(), id = ::fork();
  if (id < 0) throw RuntimeFailure(fmt::format("cannot start a trial: {}", std::strerror(errno)));
  if (id != 0) {
    ::setpgid(id, id);  // also here: whoever ends the group at once finds one
    return id;
  }
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG,
          SIGKILL);  // a killed runner leaves no trial behind that would be run a second time beside it
  if (::getppid() != parent) ::_exit(127);
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0 || ::dup2(file, 1) < 0 || ::dup2(file, 2) < 0) ::_exit(127);
  ::execve(name.c_str(), const_cast<char* const*>(arguments), environment.get());
  ::_exit(127);
}

Ended wait_for(pid_t id, double timeout, const std::atomic<bool>* interrupted) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout);
  Ended ended;
  while (::waitpid(id, &ended.status, WNOHANG) != id) {
    ended.timed_out = Clock::now() > deadline;
    ended.interrupted = interrupted != nullptr && *interrupted;
    if (ended.timed_out || ended.interrupted) {
      ::kill(-id, SIGKILL);
      ::waitpid(id, &ended.status, 0);
      return ended;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::kill(-id, SIGKILL);  // whatever it left behind
  return ended;
}

std::string how_it_ended(const Ended& ended, double timeout) {
  if (ended.interrupted) return "interrupted";
  if (ended.timed_out) return fmt::format("took longer than {} s and was ended", timeout);
  if (WIFSIGNALED(ended.status)) return fmt::format("ended by signal {}", WTERMSIG(ended.status));
  return fmt::format("exited with status {} and no answer", WEXITSTATUS(ended.status));
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t begin = text.find_last_of('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

TrialResult without_answer(const Ended& ended, double timeout, const std::filesystem::path& folder) {
  TrialResult result;
  result.outcome = ended.timed_out ? "hang" : "did_not_run";
  result.severity = ended.timed_out ? "infrastructure_failed" : "setup_failed";
  result.sentence = how_it_ended(ended, timeout);
  if (const std::string line = last_line(read_file(folder / "log.txt")); !line.empty())
    result.sentence += ": " + line.substr(0, 300);
  return result;
}

class LocalExecutor : public Executor {
 public:
  LocalExecutor(std::filesystem::path program, const std::atomic<bool>* interrupted)
      : program_(std::move(program)), interrupted_(interrupted) {}

  TrialResult run(const TrialRequest& request, const std::filesystem::path& folder) override {
    const auto begin = Clock::now();
    const std::string nonce = write_request(request, folder);
    const Ended ended = wait_for(start(program_, folder, request.variables), request.timeout, interrupted_);
    TrialResult result = read_result(ended, request.timeout, folder, nonce);
    result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return result;
  }

 private:
  std::filesystem::path program_;
  const std::atomic<bool>* interrupted_;
};

}  // namespace

std::string write_request(const TrialRequest& request, const std::filesystem::path& folder) {
  const std::string nonce = fresh_nonce();
  const Json json = {{"nonce", nonce},         {"config", request.config},       {"seed", std::to_string(request.seed)},
                     {"ranks", request.ranks}, {"transport", request.transport}, {"device", request.device}};
  write_file_atomically(folder / "request.json", to_json_text(json, 1));
  return nonce;
}

TrialResult read_result(const Ended& ended, double timeout, const std::filesystem::path& folder,
                        const std::string& nonce) {
  if (!std::filesystem::exists(folder / "response.json") || ended.timed_out || ended.interrupted)
    return without_answer(ended, timeout, folder);
  return read_answer(read_file(folder / "response.json"), nonce);
}

std::string TrialRequest::fingerprint() const {
  return json_hash({{"cell", cell},
                    {"index", index},
                    {"seed", std::to_string(seed)},
                    {"ranks", ranks},
                    {"transport", transport},
                    {"device", device},
                    {"variables", variables},
                    {"config", config}});
}

TrialRequest make_request(const Plan& plan, const Cell& cell, int64_t index) {
  TrialRequest request;
  request.cell = cell.name;
  request.index = index;
  request.seed = mix64(mix64(plan.seed, hash64(cell.name)), static_cast<uint64_t>(index));
  request.ranks = plan.ranks;
  request.transport = plan.transport;
  request.device = plan.device;
  request.variables = cell.variables;
  request.config = Json::parse(faultline::to_json(cell.config).dump());
  request.timeout = plan.timeout_per_trial;
  return request;
}

std::unique_ptr<Executor> local_executor(std::filesystem::path program, const std::atomic<bool>* interrupted) {
  return std::make_unique<LocalExecutor>(std::move(program), interrupted);
}

}  // namespace faultline::triage
