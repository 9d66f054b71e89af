// One process, one rank: joins the others through the store, runs its loop, publishes its evidence.
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/text.h"
#include "race/evidence_json.h"
#include "race/gloo_backend.h"
#include "race/heartbeat_store.h"
#include "race/run_processes.h"
#include "race/thread_backend.h"
#include "record/atomic_file.h"
#include "record/document.h"

namespace faultline::race {
namespace {

constexpr auto kBeatComparison = std::chrono::milliseconds(1200);  // several periods of the publisher

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int64_t integer_variable(const char* name, int64_t min, int64_t max) {
  const std::string text = variable(name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < min || value > max)
    throw UsageError(fmt::format("{}='{}': wanted an integer from {} to {}; the launcher (torchrun, srun) sets it",
                                 name, text, min, max));
  return value;
}

c10::intrusive_ptr<c10d::Store> open_store(const Membership& m, double timeout) {
  c10d::TCPStoreOptions options;
  options.port = m.port;
  options.isServer = m.rank == 0 && !m.agent_store;
  options.numWorkers = static_cast<size_t>(m.ranks);
  options.waitWorkers = !m.agent_store;
  options.multiTenant = true;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000));
  return c10::make_intrusive<c10d::PrefixStore>("faultline/" + m.generation,
                                                c10::make_intrusive<c10d::TCPStore>(m.address, options));
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// Sizes that differ between ranks would end the process from one of Gloo's own threads, so what decides them is agreed
// on first.
void agree_on_config(c10d::Store& store, const Membership& m, const Node& node) {
  const std::string mine = json_hash(Json::parse(faultline::to_json(node).dump()));
  store.set(fmt::format("config/{}", m.rank), bytes_of(mine));
  std::vector<int> others;
  for (int rank = 0; rank < m.ranks; ++rank) {
    std::string theirs;
    try {
      const auto bytes = store.get(fmt::format("config/{}", rank));
      theirs.assign(bytes.begin(), bytes.end());
    } catch (const std::exception&) {
      throw CollectiveFailure(CollectiveFailure::Reason::kTimeout, {rank}, fmt::format("rank {} never joined", rank));
    }
    if (theirs != mine) others.push_back(rank);
  }
  if (!others.empty())
    throw CollectiveFailure(
        CollectiveFailure::Reason::kMismatch, others,
        fmt::format("rank {} runs another configuration than rank {}", fmt::join(others, ","), m.rank));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

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
    } catch (const CollectiveFailure& failure) {
      failure_ = RankFailure{m_.rank, failure.ranks(), failure.reason() == CollectiveFailure::Reason::kTimeout,
                             failure.what()};
    } catch (const c10::Error& error) {
      failure_ = blame(error.what_without_backtrace());
    } catch (const std::exception& error) {
      failure_ = blame(error.what());
    }
    publish();
    publisher_.reset();
    RunResult result = m_.rank == 0 && folder_.empty() ? merge() : own_result();
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
    evidence_.rank = m_.rank;
    store_ = open_store(m_, config_.timeout_seconds);
    publisher_ = std::make_unique<BeatPublisher>(store_, m_.rank, heartbeat_,
                                                 config_.timeout_seconds + kGraceSeconds / 2, [this] { stuck(); });
    agree_on_config(*store_, m_, node_);
    const bool loopback = m_.address == "localhost" || m_.address == "::1" || m_.address.starts_with("127.");
    const auto data = make_gloo(store_, "data", m_.rank, m_.ranks, timeout(), loopback),
               control = make_gloo(store_, "control", m_.rank, m_.ranks, timeout(), loopback);
    RankOptions options;
    options.rank = m_.rank;
    options.ranks = m_.ranks;
    options.device = options_.device;
    options.hooks = {&injector_};
    options.heartbeat = &heartbeat_;
    options.interrupted = options_.interrupted;
    options.alternate_digests = options_.alternate_digests;
    options.reference = options_.reference;
    if (m_.rank == 0) options.progress = options_.progress;
    RankLoop(config_, options, data, control).run(evidence_);
    heartbeat_.set(config_.verify_iterations, -1, "done");
  }

  // An error of the transport says that somebody is missing, not who.
  RankFailure blame(const std::string& sentence) {
    RankFailure failure{m_.rank, {}, sentence.find("imed out") != std::string::npos, first_line(sentence)};
    if (!store_) {
      failure.blamed = {m_.rank == 0 ? m_.rank : 0};
      return failure;
    }
    const auto before = read_beats(*store_, m_.ranks);
    std::this_thread::sleep_for(kBeatComparison);
    const auto after = read_beats(*store_, m_.ranks);
    failure.blamed = blamed_by_beats(before, after, m_.rank);
    for (const int rank : failure.blamed)
      failure.sentence += fmt::format("; rank {} was last seen in {}", rank, after[static_cast<size_t>(rank)].place);
    return failure;
  }

  // Called from the publisher's thread: the main thread is somewhere it will not come back from.
  [[noreturn]] void stuck() {
    failure_ = RankFailure{m_.rank, {m_.rank}, true, fmt::format("stopped moving in {}", heartbeat_.text())};
    publish();
    std::_Exit(static_cast<int>(ExitCode::kRuntime));
  }

  Json published() const {
    Json json = {{"evidence", evidence_to_json(evidence_)}};
    if (failure_)
      json["failure"] = {{"blamed", failure_->blamed}, {"hang", failure_->hang}, {"sentence", failure_->sentence}};
    return json;
  }

  void publish() {
    const std::string text = to_json_text(published());
    if (!folder_.empty()) {
      write_file_atomically(folder_ / fmt::format("rank-{}.json", m_.rank), text);
      return;
    }
    try {
      if (store_) store_->set(fmt::format("evidence/{}", m_.rank), bytes_of(text));
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

  // Rank 0, without a launcher of ours: everybody's evidence from the store, as far as it comes in time.
  RunResult merge() {
    RunResult result = own_result();
    result.ranks = m_.ranks;
    result.silent = false;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(kGraceSeconds);
    for (int rank = 1; rank < m_.ranks; ++rank) {
      const std::string key = fmt::format("evidence/{}", rank);
      bool there = false;
      while (store_ && !(there = store_->check({key})) && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (!there) {
        result.failures.push_back({0, {rank}, false, fmt::format("rank {} left no evidence", rank)});
        continue;
      }
      const auto bytes = store_->get(key);
      add_published(result, parse_json_text(std::string(bytes.begin(), bytes.end()), key), rank);
    }
    return result;
  }

 public:
  static void add_published(RunResult& result, const Json& json, int rank) {
    result.evidence.push_back(evidence_from_json(json.at("evidence"), fmt::format("rank {}", rank)));
    if (!json.contains("failure")) return;
    const Json& f = json.at("failure");
    result.failures.push_back({rank, f.at("blamed").get<std::vector<int>>(), f.at("hang"), f.at("sentence")});
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
  std::optional<RankFailure> failure_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<BeatPublisher> publisher_;
};

}  // namespace

std::optional<Membership> membership_from_environment() {
  if (variable("RANK").empty()) return std::nullopt;
  Membership m;
  m.ranks = static_cast<int>(integer_variable("WORLD_SIZE", 1, 256));
  m.rank = static_cast<int>(integer_variable("RANK", 0, m.ranks - 1));
  m.local_ranks = variable("LOCAL_WORLD_SIZE").empty()
                      ? m.ranks
                      : static_cast<int>(integer_variable("LOCAL_WORLD_SIZE", 1, m.ranks));
  m.address = variable("MASTER_ADDR");
  if (m.address.empty())
    throw UsageError("RANK is set but MASTER_ADDR is not; the launcher (torchrun, srun) sets both, or unset RANK");
  m.port = static_cast<uint16_t>(integer_variable("MASTER_PORT", 1, 65535));
  m.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  m.generation = variable("TORCHELASTIC_RESTART_COUNT").empty() ? "0" : variable("TORCHELASTIC_RESTART_COUNT");
  return m;
}

RunResult run_joined(const Membership& membership, const Node& node, const Config& config, const RunOptions& options,
                     const std::filesystem::path& folder) {
  check_ranks(config, membership.ranks);
  JoinedRank rank(membership, node, config, options, folder);
  return rank.run();
}

void add_rank_file(RunResult& result, const std::filesystem::path& path, int rank) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  JoinedRank::add_published(result, parse_json_text(text, path.string()), rank);
}

}  // namespace faultline::race
