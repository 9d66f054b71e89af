// Starts the ranks, here or through a launcher, serves the store at which they meet, waits for all of them with a limit
// and merges what they left there. A rank that was killed or stopped is known by its exit status, or by its silence.
#include "race/run_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "cluster/process_groups.h"
#include "numeric/versions.h"
#include "race/heartbeat_store.h"
#include "race/patience.h"
#include "record/environment.h"

namespace faultline::race {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kFinalReportSeconds = 2.5;  // for the others, once a rank has failed
constexpr double kStartSeconds = 30;         // for all ranks to load and report
constexpr double kLaunchSeconds = 120;       // the same through a launcher
constexpr double kEndingSeconds = 2;         // from SIGTERM to SIGKILL, for a launcher to end what it has started

struct Process {
  pid_t id = -1;
  LaunchedCommand command;
  bool ended = false;
  bool killed = false;  // by us
  int status = 0;
};

// A launcher runs in a process group of its own, so that Ctrl-C reaches us alone and the ranks through the store; its
// output goes to our standard error. It, and a rank of Python's, get the whole environment, as from a shell.
pid_t start(const LaunchedCommand& command, bool is_launcher, bool is_python) {
  std::map<std::string, std::string> variables = record::inherited_environment();
  for (const auto& [name, value] : command.variables) variables[name] = value;
  if (is_launcher || is_python)
    for (const auto& [name, value] : record::whole_environment()) variables.try_emplace(name, value);
  record::ChildEnvironment environment(variables);
  std::vector<char*> words;
  for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t parent = ::getpid(), id = ::fork();
  if (id < 0) throw RuntimeFailure(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (id != 0) return id;
  ::prctl(PR_SET_PDEATHSIG, is_launcher ? SIGTERM : SIGKILL);  // no rank outlives the one who started it
  if (::getppid() != parent) ::_exit(127);
  if (is_launcher) ::setpgid(0, 0);
  if (is_launcher || is_python) {
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  ::execvpe(words[0], words.data(), environment.get());
  ::_exit(127);
}

std::string how_it_ended(const Process& process, bool is_launcher) {
  if (process.killed) return "did not answer and was ended";
  const std::string who = is_launcher ? process.command.words[0] + " " : "";
  if (WIFSIGNALED(process.status))
    return fmt::format("{}was ended by signal {} ({})", who, WTERMSIG(process.status),
                       ::strsignal(WTERMSIG(process.status)));
  const int status = WEXITSTATUS(process.status);
  return fmt::format("{}exited with status {}{}", who, status,
                     is_launcher && status == 127 ? " (a program was not found)" : "");
}

std::string address_of(const Launch& launch) {
  if (!launch.address.empty()) return launch.address;
  return launch.hosts.empty() ? "127.0.0.1" : cluster::address_towards(launch.hosts.front());
}

class Launcher {
 public:
  Launcher(const Node& node, const Config& config, const RunOptions& options)
      : options_(options),
        total_(config.verify_iterations),
        is_launcher_(!options.launch.is_local()),
        address_(address_of(options.launch)),
        patience_(config.timeout_seconds + kGraceSeconds + 1, kLook),
        start_(is_launcher_ || options.python ? kLaunchSeconds : kStartSeconds, kLook) {
    c10d::TCPStoreOptions server;
    server.masterListenFd = cluster::listen_at(address_, port_);
    server.port = port_;
    server.isServer = true;
    server.waitWorkers = false;
    auto store = c10::make_intrusive<c10d::TCPStore>(address_, server);
    store_ = c10::make_intrusive<c10d::PrefixStore>("faultline/0", store);
    const Json request = {{"config", faultline::to_json(node)},
                          {"seed", std::to_string(config.seed)},
                          {"device", std::string(options.device.is_cpu() ? "cpu" : "cuda")},
                          {"alternate_digests", options.alternate_digests},
                          {"ranks", options.ranks},
                          {"program", numeric::versions()}};
    store_->set("request", to_json_text(request));
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  ~Launcher() { end_all(); }

  void run() {
    JoinOrder order{address_, port_, options_.ranks, options_.variables, options_.python};
    if (is_launcher_)
      for (const auto& [name, value] : record::forwarded_environment()) order.variables.try_emplace(name, value);
    for (const LaunchedCommand& command : launched_commands(options_.launch, order))
      processes_.push_back({start(command, is_launcher_, options_.python.has_value()), command});
    while (!collect() && !gave_up()) {
      if (options_.interrupted != nullptr && *options_.interrupted && !std::exchange(told_, true))
        publish_interruption(*store_);
      std::this_thread::sleep_for(kLook);
    }
    if (signs_) standings_ = signs_->standings();
    end_all();
  }

  void merge(RunResult& result) const {
    const auto ranks = static_cast<size_t>(options_.ranks);
    const std::vector<PublishedBeat> beats = read_beats(*store_, options_.ranks);
    result.standings = standings_.empty() ? std::vector<Standing>(ranks) : standings_;
    result.hosts.resize(ranks);
    for (const Process& process : processes_)
      for (const int rank : process.command.ranks) {
        std::string& host = result.hosts[static_cast<size_t>(rank)];
        const PublishedBeat& beat = beats[static_cast<size_t>(rank)];
        host = beat.host.empty() ? options_.launch.host_of(rank, options_.ranks) : beat.host;
        if (add_published_evidence(result, *store_, rank)) continue;
        if (!process.killed) result.standings[static_cast<size_t>(rank)].state = Standing::State::kFailed;
        const std::string seen =
            beat.present ? fmt::format("; last seen in {}", beat.standing.text()) : "; it never reported";
        const std::string who = is_launcher_ ? "" : fmt::format("rank {} ", rank);
        result.failures.push_back(
            {rank, {}, process.killed, fmt::format("{}{}{}", who, how_it_ended(process, is_launcher_), seen)});
      }
    if (!is_launcher_) result.hosts.clear();
    if (result.failures.empty()) result.standings.clear();
  }

 private:
  // Of a rank whose process has ended. One that found a corruption has not failed.
  bool failed(int rank) const {
    RunResult said;
    return !add_published_evidence(said, *store_, rank) || !said.failures.empty();
  }

  // True when all have ended. Progress of any rank renews the patience; the first failure ends it soon.
  bool collect() {
    bool all = true;
    for (Process& process : processes_) {
      if (!process.ended && ::waitpid(process.id, &process.status, WNOHANG) == process.id) {
        process.ended = true;
        const std::vector<int>& ranks = process.command.ranks;
        if (std::any_of(ranks.begin(), ranks.end(), [this](int rank) { return failed(rank); })) await_final_reports();
      }
      all &= process.ended;
    }
    if (Clock::now() - looked_ > std::chrono::milliseconds(250)) {
      looked_ = Clock::now();
      uint64_t sum = 0;
      bool reported = true;
      int64_t iteration = total_;
      for (const PublishedBeat& beat : read_beats(*store_, options_.ranks)) {
        sum += beat.beats, reported &= beat.present;
        iteration = std::min(iteration, beat.standing.iteration);
      }
      all_reported_ |= reported;
      if (options_.progress && reported && iteration > done_) options_.progress(done_ = iteration, total_);
      if (sum != beats_) beats_ = sum, patience_.restart();
    }
    return all;
  }

  void await_final_reports() {
    if (signs_) return;
    signs_.emplace(store_, options_.ranks);
    final_reports_.restart();
  }

  // Nothing moves, and who still lives has had time to show it. The others learn of a failure through the transport.
  bool gave_up() {
    // Ranks that load torch on a busy machine have not begun to be late.
    const bool too_long = patience_.over(), loading = !start_.over() && !all_reported_;
    if (too_long && !loading) await_final_reports();
    return final_reports_.over() && signs_;
  }

  // Ranks on other machines end by themselves when the store is gone.
  void end_all() {
    const auto all_ended = [this] {
      for (Process& process : processes_)
        process.ended = process.ended || ::waitpid(process.id, &process.status, WNOHANG) == process.id;
      return std::all_of(processes_.begin(), processes_.end(), [](const Process& process) { return process.ended; });
    };
    if (all_ended()) return;
    for (Process& process : processes_) {
      if (process.ended) continue;
      process.killed = true;
      if (is_launcher_) ::kill(-process.id, SIGTERM);
    }
    for (Patience ending(kEndingSeconds, kLook); is_launcher_ && !all_ended() && !ending.over();)
      std::this_thread::sleep_for(kLook);
    for (Process& process : processes_) {
      if (process.ended) continue;
      ::kill(is_launcher_ ? -process.id : process.id, SIGKILL);
      ::waitpid(process.id, &process.status, 0);
      process.ended = true;
    }
  }

  RunOptions options_;
  int64_t total_, done_ = 0;  // iterations
  bool is_launcher_;
  std::string address_;
  uint16_t port_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<Process> processes_;
  Patience patience_, start_, final_reports_{kFinalReportSeconds, kLook};
  std::optional<LivenessCheck> signs_;  // since the first failure
  std::vector<Standing> standings_;
  Clock::time_point looked_;
  bool all_reported_ = false;
  uint64_t beats_ = 0;
  bool told_ = false;
};

}  // namespace

RunResult run_processes(const Node& node, const Config& config, const RunOptions& options) {
  check_ranks(config, options.ranks);
  const auto start = Clock::now();
  RunResult result;
  result.ranks = options.ranks;
  Launcher launcher(node, config, options);
  launcher.run();
  launcher.merge(result);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  conclude(result);
  if (options.progress && result.iterations() > 0) options.progress(result.iterations(), config.verify_iterations);
  return result;
}

void check_transport(const std::string& transport, at::Device device, const std::optional<PythonRanks>& python) {
  if (transport != "threads" && transport != "gloo" && transport != "nccl" && transport != "torch")
    throw UsageError(fmt::format("--transport: wanted threads, gloo, nccl or torch, got '{}'", transport));
  if ((transport == "torch") != python.has_value())
    throw UsageError(python ? "--backend and --import are of transport torch; leave them out, or give --transport torch"
                            : "transport torch needs a backend of torch.distributed: --backend NAME");
  if (python) return check_python_ranks(*python);
  if (transport == "gloo" && !device.is_cpu())
    throw UsageError("--transport gloo carries CPU tensors; use --device cpu, or threads or nccl on a GPU");
  if (transport == "nccl" && device.is_cpu())
    throw UsageError("--transport nccl carries GPU tensors; use --device cuda, or gloo on a CPU");
  if (transport == "nccl" && device.index() > 0)
    throw UsageError("--transport nccl gives every rank the GPU of its local rank; use --device cuda without an index");
}

RunResult run(const std::string& transport, const Node& node, const Config& config, const RunOptions& options) {
  check_transport(transport, options.device, options.python);
  check_launch(options.launch, transport, options.ranks);
  if (const auto membership = cluster::membership_from_environment()) {
    if (!options.launch.is_local())
      throw UsageError("RANK is set: this process is a rank of a job already; leave out the launcher, or unset RANK");
    if (options.python && !options.data_group)
      throw UsageError(
          "RANK is set, and a rank of transport torch is a Python process: torchrun … -m faultline.race --backend "
          "NAME");
    return run_joined(*membership, node, config, options);
  }
  if (transport == "threads") return run_threads(config, options);
  if (transport == "nccl") {
    cluster::load_nccl();
    if (options.launch.is_local()) (void)cluster::gpu_of_rank(options.ranks - 1, cluster::count_gpus());
  }
  return run_processes(node, config, options);
}

}  // namespace faultline::race
