// The launcher of ranks on one machine: serves the store, starts a process a rank, waits for all of them with a limit,
// merges what they left. A rank that was killed or stopped is known here by its exit status, or by its not having one.
#include "race/run_processes.h"

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

#include "race/heartbeat_store.h"
#include "race/loopback.h"
#include "race/nccl_backend.h"
#include "race/patience.h"
#include "record/atomic_file.h"
#include "record/environment.h"

namespace faultline::race {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLastWordsSeconds = 2.5;  // for the others, once a rank has failed
constexpr double kStartSeconds = 30;       // for all ranks to load and report

struct RankProcess {
  pid_t id = -1;
  bool ended = false;
  bool killed = false;  // by us
  int status = 0;
};

std::filesystem::path make_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "faultline-race-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw RuntimeFailure(fmt::format("cannot create {}: {}", name, std::strerror(errno)));
  return name;
}

ChildEnvironment environment_of(int rank, int ranks, uint16_t port) {
  std::map<std::string, std::string> all = inherited_environment();
  all["RANK"] = all["LOCAL_RANK"] = std::to_string(rank);
  all["WORLD_SIZE"] = all["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  all["MASTER_ADDR"] = "127.0.0.1";
  all["MASTER_PORT"] = std::to_string(port);
  all.try_emplace("NCCL_SOCKET_IFNAME", "lo");  // NCCL takes any other interface first
  all["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  all["TORCHELASTIC_RESTART_COUNT"] = "0";
  return ChildEnvironment(all);
}

pid_t start_rank(const std::filesystem::path& folder, ChildEnvironment environment) {
  const std::string join = folder.string();
  const char* const arguments[] = {"faultline", "race", "--join", join.c_str(), "--quiet", nullptr};
  const pid_t parent = ::getpid(), id = ::fork();
  if (id < 0) throw RuntimeFailure(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (id != 0) return id;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives its launcher
  if (::getppid() != parent) ::_exit(127);
  ::execve("/proc/self/exe", const_cast<char* const*>(arguments), environment.get());
  ::_exit(127);
}

std::string how_it_ended(const RankProcess& process) {
  if (process.killed) return "did not answer and was ended";
  if (WIFSIGNALED(process.status))
    return fmt::format("was ended by signal {} ({})", WTERMSIG(process.status), ::strsignal(WTERMSIG(process.status)));
  return fmt::format("exited with status {}", WEXITSTATUS(process.status));
}

class Launcher {
 public:
  Launcher(const Config& config, const RunOptions& options, std::filesystem::path folder)
      : options_(options), folder_(std::move(folder)), patience_(config.timeout_seconds + kGraceSeconds + 1, kLook) {
    c10d::TCPStoreOptions server;
    server.masterListenFd = listen_on_loopback("127.0.0.1", port_);
    server.port = port_;
    server.isServer = true;
    server.waitWorkers = false;
    auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", server);
    store_ = c10::make_intrusive<c10d::PrefixStore>("faultline/0", store);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  ~Launcher() {
    for (RankProcess& process : processes_) end(process);
  }

  void run() {
    for (int rank = 0; rank < options_.ranks; ++rank)
      processes_.push_back({start_rank(folder_, environment_of(rank, options_.ranks, port_))});
    while (!collect() && !gave_up()) {
      if (options_.interrupted != nullptr && *options_.interrupted && !told_) told_ = tell_interrupt();
      std::this_thread::sleep_for(kLook);
    }
    if (signs_) standings_ = signs_->standings();
    for (RankProcess& process : processes_) end(process);
  }

  void merge(RunResult& result) const {
    result.standings = standings_.empty() ? std::vector<Standing>(processes_.size()) : standings_;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (std::filesystem::exists(file_of(rank))) {
        add_rank_file(result, file_of(rank), rank);
        continue;
      }
      const RankProcess& process = processes_[static_cast<size_t>(rank)];
      if (!process.killed) result.standings[static_cast<size_t>(rank)].state = Standing::State::kFailed;
      result.failures.push_back(
          {rank, {}, process.killed, fmt::format("rank {} {}{}", rank, how_it_ended(process), last_seen(rank))});
    }
    if (result.failures.empty()) result.standings.clear();
  }

 private:
  std::filesystem::path file_of(int rank) const { return folder_ / fmt::format("rank-{}.json", rank); }

  // Of a rank that has ended. One that found a corruption has not failed.
  bool failed(int rank) const {
    if (!std::filesystem::exists(file_of(rank))) return true;
    RunResult said;
    add_rank_file(said, file_of(rank), rank);
    return !said.failures.empty();
  }

  bool tell_interrupt() {
    for (const RankProcess& process : processes_)
      if (!process.ended) ::kill(process.id, SIGINT);
    return true;
  }

  std::string last_seen(int rank) const {
    const PublishedBeat beat = read_beats(*store_, options_.ranks)[static_cast<size_t>(rank)];
    return beat.present ? fmt::format("; last seen in {}", beat.standing.text()) : "; it never reported";
  }

  // True when all have ended. Progress of any rank renews the patience; the first failure ends it soon.
  bool collect() {
    bool all = true;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      RankProcess& process = processes_[static_cast<size_t>(rank)];
      if (!process.ended && ::waitpid(process.id, &process.status, WNOHANG) == process.id) {
        process.ended = true;
        if (failed(rank)) ask_for_last_words();
      }
      all &= process.ended;
    }
    if (Clock::now() - looked_ > std::chrono::milliseconds(250)) {
      looked_ = Clock::now();
      uint64_t sum = 0;
      bool reported = true;
      for (const PublishedBeat& beat : read_beats(*store_, options_.ranks)) sum += beat.beats, reported &= beat.present;
      all_reported_ |= reported;
      if (sum != beats_) beats_ = sum, patience_.restart();
    }
    return all;
  }

  void ask_for_last_words() {
    if (signs_) return;
    signs_.emplace(store_, options_.ranks);
    last_words_.restart();
  }

  // Nothing moves, and who still lives has had time to show it. The others learn of a failure through the transport.
  bool gave_up() {
    // Ranks that load torch on a busy machine have not begun to be late.
    const bool too_long = patience_.over(), loading = !start_.over() && !all_reported_;
    if (too_long && !loading) ask_for_last_words();
    return last_words_.over() && signs_;
  }

  static void end(RankProcess& process) {
    if (process.ended) return;
    ::kill(process.id, SIGKILL);
    ::waitpid(process.id, &process.status, 0);
    process.ended = process.killed = true;
  }

  RunOptions options_;
  std::filesystem::path folder_;
  c10::intrusive_ptr<c10d::Store> store_;
  uint16_t port_ = 0;
  std::vector<RankProcess> processes_;
  Patience patience_, start_{kStartSeconds, kLook}, last_words_{kLastWordsSeconds, kLook};
  std::optional<SignsOfLife> signs_;  // since the first failure
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
  const std::filesystem::path folder = make_folder();
  RunResult result;
  result.ranks = options.ranks;
  const Json request = {{"config", as_record(faultline::to_json(node))},
                        {"seed", std::to_string(config.seed)},
                        {"device", std::string(options.device.is_cpu() ? "cpu" : "cuda")},
                        {"alternate_digests", options.alternate_digests}};
  write_file_atomically(folder / "request.json", to_json_text(request));
  try {
    Launcher launcher(config, options, folder);
    launcher.run();
    launcher.merge(result);
  } catch (...) {
    std::filesystem::remove_all(folder);
    throw;
  }
  std::filesystem::remove_all(folder);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  conclude(result);
  return result;
}

void check_transport(const std::string& transport, at::Device device) {
  if (transport != "threads" && transport != "gloo" && transport != "nccl")
    throw UsageError(fmt::format("--transport: wanted threads, gloo or nccl, got '{}'", transport));
  if (transport == "gloo" && !device.is_cpu())
    throw UsageError("--transport gloo carries CPU tensors; use --device cpu, or threads or nccl on a GPU");
  if (transport == "nccl" && device.is_cpu())
    throw UsageError("--transport nccl carries GPU tensors; use --device cuda, or gloo on a CPU");
  if (transport == "nccl" && device.index() > 0)
    throw UsageError("--transport nccl gives every rank the GPU of its local rank; use --device cuda without an index");
}

RunResult run(const std::string& transport, const Node& node, const Config& config, const RunOptions& options) {
  check_transport(transport, options.device);
  if (const auto membership = membership_from_environment()) return run_joined(*membership, node, config, options, "");
  if (transport == "threads") return run_threads(config, options);
  if (transport == "nccl") {
    load_nccl();
    (void)gpu_of_rank(options.ranks - 1, count_gpus());
  }
  return run_processes(node, config, options);
}

}  // namespace faultline::race
