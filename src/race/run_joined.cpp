// One process, one rank: joins the others through the store, runs its loop, publishes its evidence.
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/machine.h"
#include "base/text.h"
#include "cluster/process_groups.h"
#include "numeric/versions.h"
#include "race/heartbeat_store.h"
#include "race/patience.h"
#include "race/run.h"
#include "race/run_processes.h"
#include "race/thread_backend.h"
#include "record/document.h"

namespace faultline::race {
namespace {

// Sizes that differ between ranks would end the process from one of Gloo's own threads, so what decides them is agreed
// on first.
void agree_on_config(c10d::Store& store, const cluster::Membership& m, const Node& node) {
  const std::string mine = record::json_hash(faultline::to_json(node));
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

std::string evidence_key(int rank) { return fmt::format("evidence/{}", rank); }

// What a rank leaves in the store; add_published reads it.
Json published(const RankEvidence& evidence, const Standing& standing, const std::string& host,
               const std::optional<RankFailure>& failure) {
  Json json = {{"evidence", evidence_to_json(evidence)}, {"standing", to_json(standing)}, {"host", host}};
  if (failure) json["failure"] = {{"named", failure->named}, {"hang", failure->hang}, {"sentence", failure->sentence}};
  return json;
}

void add_published(RunResult& result, const Json& json, int rank) {
  const auto index = static_cast<size_t>(rank);
  result.evidence.push_back(evidence_from_json(json.at("evidence"), fmt::format("rank {}", rank)));
  result.standings.resize(std::max(result.standings.size(), index + 1));
  result.standings[index] = standing_from_json(json.at("standing"));
  result.hosts.resize(std::max(result.hosts.size(), index + 1));
  result.hosts[index] = json.at("host");
  if (!json.contains("failure")) return;
  const Json& f = json.at("failure");
  result.failures.push_back({rank, f.at("named").get<std::vector<int>>(), f.at("hang"), f.at("sentence")});
}

class JoinedRank {
 public:
  JoinedRank(const cluster::Membership& m, const Node& node, const Config& config, const RunOptions& options,
             std::string host, bool launched)
      : m_(m),
        node_(node),
        config_(config),
        options_(options),
        host_(std::move(host)),
        launched_(launched),
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
    publish_final_report();
    publisher_.reset();
    if (failure_ && !options_.device.is_cpu()) leave_behind();
    RunResult result = m_.rank == 0 && !launched_ ? merge() : own_result();
    if (m_.rank != 0 && !launched_ && failure_) wait_for_merge();
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
    store_ = cluster::open_store(m_, config_.timeout_seconds);
    BeatPublisher::Calls calls{.stuck = [this] { stuck(); }};
    if (launched_) {
      calls.interrupted = [] { ::raise(SIGINT); };
      calls.store_gone = [] { std::_Exit(static_cast<int>(ExitCode::kRuntime)); };  // nobody is left to tell
    }
    publisher_ = std::make_unique<BeatPublisher>(store_, m_.rank, host_, heartbeat_,
                                                 config_.timeout_seconds + kGraceSeconds / 2, std::move(calls));
    agree_on_config(*store_, m_, node_);
    const std::string address = cluster::gloo_address(m_);
    const auto control = cluster::make_gloo(store_, "control", m_.rank, m_.ranks, timeout(), address);
    data_ = make_data_group(address);
    heartbeat_.work(0, -1, "start");
    RankOptions options;
    options.rank = m_.rank;
    options.ranks = m_.ranks;
    options.device = options_.device;
    options.hooks = {&injector_};
    options.heartbeat = &heartbeat_;
    options.evidence_mutex = &evidence_mutex_;
    options.interrupted = options_.interrupted;
    options.watches_calls = static_cast<bool>(options_.data_group);
    options.alternate_digests = options_.alternate_digests;
    options.reference = options_.reference;
    if (m_.rank == 0) options.progress = options_.progress;
    RankLoop(config_, options, data_, control).run(evidence_);
    heartbeat_.work(config_.verify_iterations, -1, "shutdown");
    data_->shutdown();
  }

  c10::intrusive_ptr<c10d::Backend> make_data_group(const std::string& address) {
    if (options_.data_group) return options_.data_group({m_, options_.device, config_.timeout_seconds, heartbeat_});
    if (options_.device.is_cpu()) return cluster::make_gloo(store_, "data", m_.rank, m_.ranks, timeout(), address);
    return cluster::make_nccl(store_, "data", m_.rank, m_.ranks, timeout());
  }

  // What ends a rank that waits is the transport's error: somebody is missing, and it does not say who. Any other is
  // the rank's own.
  RankFailure failure_of(const std::string& sentence) {
    const Standing::State state = heartbeat_.standing().state;
    const bool waited = state == Standing::State::kWaiting || state == Standing::State::kCalling;
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
  // Note [Final report]: a rank that was only slow may come back at this very moment. Whoever locks final_report_mutex_
  // first speaks for the rank. The main thread unlocks it, and then nothing is left to say here; this thread keeps it,
  // and the main thread waits there for the process to end.
  void stuck() {
    final_report_mutex_.lock();
    if (final_report_published_) return final_report_mutex_.unlock();
    publish(RankFailure{m_.rank, {}, true, fmt::format("stopped moving in {}", heartbeat_.standing().text())});
    std::_Exit(static_cast<int>(ExitCode::kRuntime));
  }

  void publish_final_report() {
    const std::lock_guard<std::mutex> lock(final_report_mutex_);
    publish(failure_);
    final_report_published_ = true;
  }

  void publish(const std::optional<RankFailure>& failure) {
    std::unique_lock<std::mutex> lock(evidence_mutex_);
    const Json json = published(evidence_, heartbeat_.standing(), host_, failure);
    lock.unlock();
    const std::string text = to_json_text(json);
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
    LivenessCheck signs(store_, m_.ranks);
    std::vector<int> absent;
    for (int rank = 1; rank < m_.ranks; ++rank)
      if (!await_evidence(rank, signs)) absent.push_back(rank);
    result.hosts.resize(static_cast<size_t>(m_.ranks));
    result.hosts[0] = host_;
    result.standings = signs.standings();
    result.standings[0] = heartbeat_.standing();
    for (int rank = 1; rank < m_.ranks; ++rank) {
      const std::string key = evidence_key(rank);
      if (std::find(absent.begin(), absent.end(), rank) != absent.end())
        result.failures.push_back({rank, {}, false, fmt::format("rank {} left no evidence", rank)});
      else
        add_published(result, parse_json_text(store_->get_to_str(key), key), rank);
      if (result.hosts[static_cast<size_t>(rank)].empty()) result.hosts[static_cast<size_t>(rank)] = signs.host(rank);
    }
    if (std::all_of(result.hosts.begin(), result.hosts.end(), [this](const std::string& h) { return h == host_; }))
      result.hosts.clear();
    if (result.failures.empty()) result.standings.clear();
    store_->set("merged", "");
    return result;
  }

  bool await_evidence(int rank, LivenessCheck& signs) {
    Patience patience(kGraceSeconds, kLook);
    while (!store_->check({evidence_key(rank)})) {
      if (signs.reported_again(rank)) patience.restart();
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

  cluster::Membership m_;
  Node node_;
  Config config_;
  RunOptions options_;
  std::string host_;
  bool launched_;
  Injector injector_;
  Heartbeat heartbeat_;
  RankEvidence evidence_;
  std::mutex evidence_mutex_;
  std::optional<RankFailure> failure_;
  std::mutex final_report_mutex_;
  bool final_report_published_ = false;
  bool left_behind_ = false;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> data_;
  std::unique_ptr<BeatPublisher> publisher_;
};

c10::Device device_of_rank(c10::DeviceType type, int local_rank) {
  const int devices = c10::impl::VirtualGuardImpl(type).deviceCount();
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  if (local_rank >= devices)
    throw UsageError(
        fmt::format("this machine has {} devices {}, and local rank {} needs number {}; start at most {} ranks a "
                    "machine, or name one for all of them: --device {}:0",
                    devices, name, local_rank, local_rank, devices, name));
  return c10::Device(type, static_cast<c10::DeviceIndex>(local_rank));
}

RunResult run_rank(const cluster::Membership& membership, const std::string& host, bool launched, const Node& node,
                   const Config& config, const RunOptions& options) {
  check_ranks(config, membership.ranks);
  RunOptions own = options;
  const bool own_device = !options.device.is_cpu() && !(options.data_group && options.device.has_index());
  if (own_device && !membership.local_rank)
    throw UsageError(
        "LOCAL_RANK is not set, which says whose GPU is whose; torchrun sets it, under srun: "
        "LOCAL_RANK=$SLURM_LOCALID");
  if (own_device && options.data_group) own.device = device_of_rank(options.device.type(), *membership.local_rank);
  if (own_device && !options.data_group) {
    if (membership.on_loopback()) cluster::keep_nccl_on_loopback();
    cluster::load_nccl();
    own.device = cluster::gpu_of_rank(*membership.local_rank, cluster::count_gpus());
  }
  return JoinedRank(membership, node, config, own, host, launched).run();
}

}  // namespace

RunResult run_joined(const cluster::Membership& membership, const Node& node, const Config& config,
                     const RunOptions& options) {
  return run_rank(membership, host_name(), false, node, config, options);
}

RunResult run_launched(const cluster::Membership& membership, const std::string& host, const Node& node,
                       const Config& config, const RunOptions& options) {
  return run_rank(membership, host, true, node, config, options);
}

Node launched_request(const cluster::Membership& m) {
  const auto store = cluster::open_store(m, kGraceSeconds);
  const Json request = parse_json_text(store->get_to_str("request"), "the launcher's request");
  const Json mine = numeric::versions(), &theirs = request.at("program");
  for (const char* part : {"version", "commit"})
    if (theirs.at(part) != mine.at(part))
      throw UsageError(
          fmt::format("this machine has faultline {} ({}), and the launcher {} ({}); install one version "
                      "everywhere",
                      mine.at("version").get<std::string>(), mine.at("commit").get<std::string>(),
                      theirs.at("version").get<std::string>(), theirs.at("commit").get<std::string>()));
  if (request.at("ranks") != m.ranks)
    throw UsageError(fmt::format("the launcher asked for {} ranks, and the job that it started has {}",
                                 request.at("ranks").get<int>(), m.ranks));
  if (store->add(fmt::format("joined/{}", m.rank), 1) != 1)
    throw UsageError(fmt::format("two processes are rank {}", m.rank));
  return from_json(request);
}

void refuse_launch(const cluster::Membership& m, const std::string& host, const std::string& sentence) {
  Standing standing;
  standing.state = Standing::State::kFailed;
  RankEvidence evidence;
  evidence.rank = m.rank;
  const Json json = published(evidence, standing, host, RankFailure{m.rank, {m.rank}, false, sentence});
  try {
    const auto store = cluster::open_store(m, kGraceSeconds);
    if (!store->check({evidence_key(m.rank)})) store->set(evidence_key(m.rank), to_json_text(json));
  } catch (const std::exception&) {  // no launcher, nobody to tell
  }
}

bool add_published_evidence(RunResult& result, c10d::Store& store, int rank) {
  const std::string key = evidence_key(rank);
  if (!store.check({key})) return false;
  add_published(result, parse_json_text(store.get_to_str(key), key), rank);
  return true;
}

}  // namespace faultline::race
