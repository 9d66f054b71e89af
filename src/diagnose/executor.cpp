#include "diagnose/executor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <istream>
#include <map>
#include <ostream>
#include <thread>

#include "base/error.h"
#include "diagnose/campaign_records.h"
#include "diagnose/campaign_trial.h"
#include "record/environment.h"
#include "record/file_descriptor.h"

namespace faultline {
namespace {

constexpr int kTriesOfATrial = 2;

class InProcess : public TrialExecutor {
 public:
  InProcess(const CampaignMachine& machine, const CampaignSpec& spec) : bench_(machine, spec) {}

  void run(const std::function<std::optional<TrialKey>()>& next, const std::function<void(Trial&&)>& done,
           const std::function<void(const TrialKey&, const std::string&)>&) override {
    while (const std::optional<TrialKey> key = next()) done(bench_.run(*key));
  }

 private:
  TrialBench bench_;
};

struct Worker {
  pid_t id = -1;
  FileDescriptor to, from;
  std::string received;
  std::optional<TrialKey> busy_with;
};

class Local : public TrialExecutor {
 public:
  Local(const CampaignMachine& machine, const CampaignSpec& spec, int jobs) : jobs_(jobs) {
    CampaignMachine one = machine;
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    if (one.threads == 0) one.threads = std::max(1, cores / jobs);
    request_ = to_json_text(campaign_request(one, spec)) + "\n";
    ::signal(SIGPIPE, SIG_IGN);  // a dead worker shows as an error of write
  }
  ~Local() override {
    for (Worker& worker : workers_) end(worker);
  }

  void run(const std::function<std::optional<TrialKey>()>& next, const std::function<void(Trial&&)>& done,
           const std::function<void(const TrialKey&, const std::string&)>& failed) override {
    next_ = &next, done_ = &done, failed_ = &failed;
    for (int i = 0; i < jobs_; ++i) start();
    while (serve_once()) {
    }
    for (Worker& worker : workers_) end(worker);
    workers_.clear();
  }

 private:
  void start();
  bool give(Worker& worker);
  bool serve_once();
  void take(Worker& worker);
  void bury(Worker& worker);
  static void end(Worker& worker);

  int jobs_;
  int deaths_in_a_row_ = 0;
  std::string request_;
  std::vector<Worker> workers_;
  std::deque<TrialKey> again_;
  std::map<std::pair<std::string, int64_t>, int> tries_;
  const std::function<std::optional<TrialKey>()>* next_ = nullptr;
  const std::function<void(Trial&&)>* done_ = nullptr;
  const std::function<void(const TrialKey&, const std::string&)>* failed_ = nullptr;
};

bool write_all(int to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(to, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

[[noreturn]] void become_worker(int in, int out, pid_t parent, char* const* environment) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no worker outlives the campaign
  if (::getppid() != parent || ::dup2(in, 0) < 0 || ::dup2(out, 1) < 0) ::_exit(127);
  const char* const arguments[] = {"faultline", "diagnose", "--worker", "--quiet", nullptr};
  ::execve("/proc/self/exe", const_cast<char* const*>(arguments), environment);
  ::_exit(127);
}

void Local::start() {
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0)
    throw RuntimeFailure(fmt::format("cannot make a pipe for a worker: {}", std::strerror(errno)));
  Worker worker;
  worker.to = FileDescriptor(to[1]), worker.from = FileDescriptor(from[0]);
  const FileDescriptor in(to[0]), out(from[1]);
  ChildEnvironment environment;
  const pid_t parent = ::getpid();
  worker.id = ::fork();
  if (worker.id < 0) throw RuntimeFailure(fmt::format("cannot start a worker: {}", std::strerror(errno)));
  if (worker.id == 0) become_worker(in.get(), out.get(), parent, environment.get());
  if (write_all(worker.to.get(), request_) && !give(worker)) {
    end(worker);
    return;
  }
  workers_.push_back(std::move(worker));  // one that is dead already is found by reading from it
}

// False: there is nothing left to do.
bool Local::give(Worker& worker) {
  if (!again_.empty()) {
    worker.busy_with = again_.front();
    again_.pop_front();
  } else {
    worker.busy_with = (*next_)();
  }
  if (!worker.busy_with) return false;
  (void)write_all(worker.to.get(),
                  to_json_text(Json{{"cell", worker.busy_with->cell}, {"index", worker.busy_with->index}}) + "\n");
  return true;
}

void Local::take(Worker& worker) {
  for (std::size_t end; worker.busy_with && (end = worker.received.find('\n')) != std::string::npos;) {
    const Json line = parse_json_text(worker.received.substr(0, end), "a worker");
    worker.received.erase(0, end + 1);
    deaths_in_a_row_ = 0;
    if (line.contains("error"))
      (*failed_)(*worker.busy_with, line["error"].get<std::string>());
    else
      (*done_)(trial_from_record(line, "a worker"));
    give(worker);
  }
}

void Local::bury(Worker& worker) {
  int status = 0;
  while (::waitpid(worker.id, &status, 0) < 0 && errno == EINTR) {
  }
  worker.id = -1;
  const std::string how = WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                              : fmt::format("exited with status {}", WEXITSTATUS(status));
  const std::optional<TrialKey> key = std::exchange(worker.busy_with, std::nullopt);
  if (!key) return;
  if (++deaths_in_a_row_ > 2 * jobs_)
    throw RuntimeFailure(fmt::format("workers die one after the other; the last one {}", how));
  if (++tries_[{key->cell, key->index}] < kTriesOfATrial)
    again_.push_back(*key);
  else
    (*failed_)(*key, "the worker " + how);
}

// False: no worker is busy.
bool Local::serve_once() {
  std::vector<pollfd> waiting;
  std::vector<std::size_t> index;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].busy_with) waiting.push_back({workers_[i].from.get(), POLLIN, 0}), index.push_back(i);
  if (waiting.empty()) {
    if (again_.empty()) return false;
    start();  // the last one died
    return true;
  }
  if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR)
    throw RuntimeFailure(fmt::format("cannot wait for workers: {}", std::strerror(errno)));
  int dead = 0;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i].revents == 0) continue;
    Worker& worker = workers_[index[i]];
    char buffer[65536];
    const ssize_t count = ::read(worker.from.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count > 0) {
      worker.received.append(buffer, static_cast<std::size_t>(count));
      take(worker);
    } else {
      bury(worker), ++dead;
    }
  }
  for (int i = 0; i < dead; ++i) start();
  return true;
}

void Local::end(Worker& worker) {
  worker.to = FileDescriptor();  // end of its input: it leaves
  if (worker.id <= 0) return;
  if (worker.busy_with) ::kill(worker.id, SIGKILL);
  int status = 0;
  while (::waitpid(worker.id, &status, 0) < 0 && errno == EINTR) {
  }
  worker.id = -1;
}

}  // namespace

std::unique_ptr<TrialExecutor> in_process_executor(const CampaignMachine& machine, const CampaignSpec& spec) {
  return std::make_unique<InProcess>(machine, spec);
}

std::unique_ptr<TrialExecutor> local_executor(const CampaignMachine& machine, const CampaignSpec& spec, int jobs) {
  return std::make_unique<Local>(machine, spec, jobs);
}

void serve_trials(std::istream& in, std::ostream& out, const std::function<void(const CampaignMachine&)>& prepare) {
  std::string line;
  if (!std::getline(in, line)) return;
  const auto [machine, spec] = campaign_from_request(parse_json_text(line, "the campaign"));
  prepare(machine);
  std::unique_ptr<TrialBench> bench;
  while (std::getline(in, line)) {
    Json answer;
    try {
      const Json request = parse_json_text(line, "a trial");
      if (!bench) bench = std::make_unique<TrialBench>(machine, spec);
      answer = to_record(bench->run({request.at("cell").get<std::string>(), request.at("index").get<int64_t>()}));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
      bench.reset();  // whatever it left behind
    }
    out << to_json_text(answer) << "\n" << std::flush;
  }
}

}  // namespace faultline
