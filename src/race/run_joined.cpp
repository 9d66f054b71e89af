// One process, one rank: joins the others through the store, runs its loop, publishes its evidence.
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/text.h"
#include "race/evidence_json.h"
#include "race/gloo_backend.h"
#include "race/heartbeat_store.h"
#include "race/loopback.h"
#include "race/nccl_backend.h"
#include "race/patience.h"
#include "race/run_processes.h"
#include "race/thread_backend.h"
#include "record/atomic_file.h"
#include "record/document.h"

namespace faultline::race {
namespace {

// Sizes that differ between ranks would end the process from one of Gloo's own threads, so what decides them is agreed
// on first.
void agree_on_config(c10d::Store& store, const Membership& m, const Node& node) {
  const std::string mine = json_hash(as_record(faultline::to_json(node)));
  store.set(fmt::format("config/{}", m.rank), mine);
  std::map<std::string, std::vector<int>> by_config;
  for (int rank = 0; rank < m.ranks; ++rank) {
    try {
      by_config[store.get_to_str(fmt::format("config/{}", rank))].push_back(rank);
    } catch (const std::exception&) {
      throw CollectiveFailure(CollectiveFailure::Reason::kTimeout, {rank}, fmt::format("rank {} never joined", rank));
    }
  }
  if (by_config.size() == 1) return;
  std::vector<int> others;  // than most; nobody where no configuration has a majority
  for (const auto& [config, ranks] : by_config)
    if (2 * std::ssize(ranks) <= m.ranks) others.insert(others.end(), ranks.begin(), ranks.end());
  if (std::ssize(others) == m.ranks) others.clear();
  throw CollectiveFailure(CollectiveFailure::Reason::kMismatch, others, "the ranks run different configurations");
}

class JoinedRank {
 public:
  JoinedRank(const Membership& m, const Node& node, const Config& config, const RunOptions& options,
             std::filesystem::path folder)
      : m_(m),
        node_(node),
        config_(config),
        options_(options),
        folder_(std::move(folder)),
        injector_(config.inject, std::make_shared<std::atomic<bool>>(false), true) {}

  RunResult run() {
    const auto start = std::chrono::steady_clock::now();
    try {
      run_rank();
      heartbeat_.finish();
    } catch (const CollectiveFailure& failure) {
      failure_ = RankFailure{m_.rank, failure.ranks(), failure.reason() == CollectiveFailure::Reason::kTimeout,
                             failure.what()};
    } catch (const c10::Error& error) {
      failure_ = failure_of(error.what_without_backtrace());
    } catch (const std::exception& error) {
      failure_ = failure_of(error.what());
    }
    give_last_word();
    publisher_.reset();
    if (failure_ && !options_.device.is_cpu()) leave_behind();
    const bool launched = !folder_.empty();
    RunResult result = m_.rank == 0 && !launched ? merge() : own_result();
    if (m_.rank != 0 && !launched && failure_) wait_for_merge();
    result.abandoned = left_behind_;
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    conclude(result);
    return result;
  }

 private:
  std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(config_.timeout_seconds * 1000));
  }

  void run_rank() {
    const c10::AutoGradMode no_gradients(false);
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    at::set_num_threads(std::max(1, cores / m_.local_ranks));
    const c10::OptionalDeviceGuard gpu(options_.device.is_cpu() ? std::nullopt : std::optional(options_.device));
    evidence_.rank = m_.rank;
    heartbeat_.wait(0, -1, "join");
    store_ = open_store(m_, config_.timeout_seconds);
    publisher_ = std::make_unique<BeatPublisher>(store_, m_.rank, heartbeat_,
                                                 config_.timeout_seconds + kGraceSeconds / 2, [this] { stuck(); });
    agree_on_config(*store_, m_, node_);
    const bool loopback = m_.on_loopback();
    const auto control = make_gloo(store_, "control", m_.rank, m_.ranks, timeout(), loopback);
    data_ = options_.device.is_cpu() ? make_gloo(store_, "data", m_.rank, m_.ranks, timeout(), loopback)
                                     : make_nccl(store_, "data", m_.rank, m_.ranks, timeout());
    heartbeat_.work(0, -1, "start");
    RankOptions options;
    options.rank = m_.rank;
    options.ranks = m_.ranks;
    options.device = options_.device;
    options.hooks = {&injector_};
    options.heartbeat = &heartbeat_;
    options.evidence_mutex = &evidence_mutex_;
    options.interrupted = options_.interrupted;
    options.alternate_digests = options_.alternate_digests;
    options.reference = options_.reference;
    if (m_.rank == 0) options.progress = options_.progress;
    RankLoop(config_, options, data_, control).run(evidence_);
    heartbeat_.work(config_.verify_iterations, -1, "shutdown");
    data_->shutdown();
  }

  // What ends a rank that waits is the transport's error: somebody is missing, and it does not say who. Any other is
  // the rank's own.
  RankFailure failure_of(const std::string& sentence) {
    const bool waited = heartbeat_.standing().state == Standing::State::kWaiting;
    const bool hang = waited && heartbeat_.seconds_here() >= config_.timeout_seconds;
    if (!waited) heartbeat_.fail();
    RankFailure failure{m_.rank, {}, hang, first_line(sentence)};
    if (!store_) failure.named = {0};  // who serves it
    return failure;
  }

  // A collective that never ends on the GPU would keep the destructor of its group waiting; the process ends soon.
  void leave_behind() {
    (void)data_.release();
    left_behind_ = true;
  }

  // Called from a thread of its own: the main thread is somewhere it will hardly come back from.
  //
  // Note [The last word]: a rank that was only slow may come back at this very moment. Whoever locks last_word_ first
  // speaks for the rank. The main thread unlocks it, and then nothing is left to say here; this thread keeps it, and
  // the main thread waits there for the process to end.
  void stuck() {
    last_word_.lock();
    if (last_word_given_) return last_word_.unlock();
    publish(RankFailure{m_.rank, {}, true, fmt::format("stopped moving in {}", heartbeat_.standing().text())});
    std::_Exit(static_cast<int>(ExitCode::kRuntime));
  }

  void give_last_word() {
    const std::lock_guard<std::mutex> lock(last_word_);
    publish(failure_);
    last_word_given_ = true;
  }

  void publish(const std::optional<RankFailure>& failure) {
    std::unique_lock<std::mutex> lock(evidence_mutex_);
    Json json = {{"evidence", evidence_to_json(evidence_)}, {"standing", to_json(heartbeat_.standing())}};
    lock.unlock();
    if (failure)
      json["failure"] = {{"named", failure->named}, {"hang", failure->hang}, {"sentence", failure->sentence}};
    const std::string text = to_json_text(json);
    if (!folder_.empty()) {
      write_file_atomically(folder_ / fmt::format("rank-{}.json", m_.rank), text);
      return;
    }
    try {
      if (store_) store_->set(evidence_key(m_.rank), text);
    } catch (const std::exception&) {  // the store went away with rank 0: nobody is left to read it
    }
  }

  RunResult own_result() const {
    RunResult result;
    result.ranks = 1;
    result.silent = true;
    result.evidence.push_back(evidence_);
    if (failure_) result.failures.push_back(*failure_);
    return result;
  }

  // Rank 0, without a launcher of ours: everybody's evidence from the store. Who gives no sign of life any more has
  // left none.
  RunResult merge() {
    RunResult result = own_result();
    result.ranks = m_.ranks;
    result.silent = false;
    if (!store_) return result;
    SignsOfLife signs(store_, m_.ranks);
    std::vector<int> absent;
    for (int rank = 1; rank < m_.ranks; ++rank)
      if (!await_evidence(rank, signs)) absent.push_back(rank);
    result.standings = signs.standings();
    result.standings[0] = heartbeat_.standing();
    for (int rank = 1; rank < m_.ranks; ++rank) {
      const std::string key = evidence_key(rank);
      if (std::find(absent.begin(), absent.end(), rank) != absent.end())
        result.failures.push_back({rank, {}, false, fmt::format("rank {} left no evidence", rank)});
      else
        add_published(result, parse_json_text(store_->get_to_str(key), key), rank);
    }
    if (result.failures.empty()) result.standings.clear();
    store_->set("merged", "");
    return result;
  }

  bool await_evidence(int rank, SignsOfLife& signs) {
    Patience patience(kGraceSeconds, kLook);
    while (!store_->check({evidence_key(rank)})) {
      if (signs.spoke_again(rank)) patience.restart();
      if (patience.over()) return false;
      std::this_thread::sleep_for(kLook);
    }
    return true;
  }

  // A launcher that is not ours may end all ranks when it sees one of them fail.
  void wait_for_merge() {
    try {
      if (store_) store_->wait({"merged"}, std::chrono::milliseconds(static_cast<int64_t>(2 * kGraceSeconds * 1000)));
    } catch (const std::exception&) {  // rank 0 is gone
    }
  }

  static std::string evidence_key(int rank) { return fmt::format("evidence/{}", rank); }

 public:
  static void add_published(RunResult& result, const Json& json, int rank) {
    result.evidence.push_back(evidence_from_json(json.at("evidence"), fmt::format("rank {}", rank)));
    result.standings.resize(std::max(result.standings.size(), static_cast<size_t>(rank) + 1));
    result.standings[static_cast<size_t>(rank)] = standing_from_json(json.at("standing"));
    if (!json.contains("failure")) return;
    const Json& f = json.at("failure");
    result.failures.push_back({rank, f.at("named").get<std::vector<int>>(), f.at("hang"), f.at("sentence")});
  }

 private:
  Membership m_;
  Node node_;
  Config config_;
  RunOptions options_;
  std::filesystem::path folder_;
  Injector injector_;
  Heartbeat heartbeat_;
  RankEvidence evidence_;
  std::mutex evidence_mutex_;
  std::optional<RankFailure> failure_;
  std::mutex last_word_;
  bool last_word_given_ = false;
  bool left_behind_ = false;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> data_;
  std::unique_ptr<BeatPublisher> publisher_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const Membership& m, double timeout) {
  c10d::TCPStoreOptions options;
  options.port = m.port;
  options.isServer = m.rank == 0 && !m.agent_store;
  if (options.isServer && m.on_loopback()) options.masterListenFd = listen_on_loopback(m.address, options.port);
  options.numWorkers = static_cast<size_t>(m.ranks);
  options.waitWorkers = !m.agent_store;
  options.multiTenant = true;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000));
  return c10::make_intrusive<c10d::PrefixStore>("faultline/" + m.generation,
                                                c10::make_intrusive<c10d::TCPStore>(m.address, options));
}

RunResult run_joined(const Membership& membership, const Node& node, const Config& config, const RunOptions& options,
                     const std::filesystem::path& folder) {
  check_ranks(config, membership.ranks);
  RunOptions own = options;
  if (!options.device.is_cpu()) {
    if (!membership.local_rank)
      throw UsageError(
          "LOCAL_RANK is not set, which says whose GPU is whose; torchrun sets it, under srun: "
          "LOCAL_RANK=$SLURM_LOCALID");
    if (membership.on_loopback()) keep_nccl_on_loopback();
    load_nccl();
    own.device = gpu_of_rank(*membership.local_rank, count_gpus());
  }
  JoinedRank rank(membership, node, config, own, folder);
  return rank.run();
}

void add_rank_file(RunResult& result, const std::filesystem::path& path, int rank) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  JoinedRank::add_published(result, parse_json_text(text, path.string()), rank);
}

}  // namespace faultline::race
