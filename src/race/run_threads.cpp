// Ranks as threads of this process. A failing rank tells the others through the group; a rank that does not come back
// at all is left behind and named.
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "race/patience.h"
#include "race/run.h"
#include "race/thread_backend.h"

namespace faultline::race {
namespace {

using Clock = std::chrono::steady_clock;

enum Group { kData, kControl };

// What the threads share with the caller; kept alive by both, since a thread may be left behind.
struct Shared {
  Config config;
  RunOptions options;
  std::vector<Heartbeat> heartbeats;
  ThreadWorld world;
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  Injector injector;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<RankEvidence> evidence;
  std::vector<bool> finished;
  std::vector<RankFailure> failures;
  std::vector<Standing> standings;

  static std::chrono::milliseconds timeout(const Config& config) {
    return std::chrono::milliseconds(static_cast<int64_t>(config.timeout_seconds * 1000));
  }
  Shared(const Config& c, const RunOptions& o)
      : config(c),
        options(o),
        heartbeats(static_cast<size_t>(o.ranks)),
        world(o.ranks, timeout(c), [this] { note_standings(); }),
        injector(c.inject, cancelled, false),
        evidence(static_cast<size_t>(o.ranks)),
        finished(static_cast<size_t>(o.ranks)) {}

  // Once: what ranks do after the first of them gave up says nothing of its cause.
  void note_standings() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!standings.empty()) return;
    for (const Heartbeat& heartbeat : heartbeats) standings.push_back(heartbeat.standing());
  }
};

void run_rank(const std::shared_ptr<Shared>& shared, int rank) {
  const c10::AutoGradMode no_gradients(false);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  at::set_num_threads(shared->options.threads_per_rank > 0 ? shared->options.threads_per_rank
                                                           : std::max(1, cores / shared->options.ranks));
  std::optional<c10::StreamGuard> stream;  // each rank has its own
  if (!shared->options.device.is_cpu())
    stream.emplace(
        c10::impl::VirtualGuardImpl(shared->options.device.type()).getStreamFromGlobalPool(shared->options.device));
  RankOptions options;
  options.rank = rank;
  options.ranks = shared->options.ranks;
  options.device = shared->options.device;
  options.hooks = shared->options.hooks;
  options.hooks.insert(options.hooks.begin(), &shared->injector);
  options.heartbeat = &shared->heartbeats[static_cast<size_t>(rank)];
  options.interrupted = shared->options.interrupted;
  options.alternate_digests = shared->options.alternate_digests;
  options.reference = shared->options.reference;
  if (rank == 0) options.progress = shared->options.progress;
  RankLoop loop(shared->config, options, shared->world.backend(rank, kData), shared->world.backend(rank, kControl));
  loop.run(shared->evidence[static_cast<size_t>(rank)]);
}

// Whatever ended the rank, or nullopt.
std::optional<RankFailure> failure_of(const std::shared_ptr<Shared>& shared, int rank) {
  Heartbeat& heartbeat = shared->heartbeats[static_cast<size_t>(rank)];
  try {
    run_rank(shared, rank);
    heartbeat.finish();
    return std::nullopt;
  } catch (const CollectiveFailure& failure) {
    return RankFailure{rank, failure.ranks(), failure.reason() == CollectiveFailure::Reason::kTimeout, failure.what()};
  } catch (const c10::Error& error) {
    heartbeat.fail();
    return RankFailure{rank, {rank}, false, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    heartbeat.fail();
    return RankFailure{rank, {rank}, false, error.what()};
  }
}

void thread_body(const std::shared_ptr<Shared>& shared, int rank) {
  const auto failure = failure_of(shared, rank);
  if (failure) {
    shared->note_standings();  // nobody may be waiting for this rank
    shared->world.leave(rank, failure->sentence);
  }
  const std::lock_guard<std::mutex> lock(shared->mutex);
  if (failure) shared->failures.push_back(*failure);
  shared->finished[static_cast<size_t>(rank)] = true;
  shared->changed.notify_all();
}

uint64_t total_beats(const Shared& shared) {
  uint64_t total = 0;
  for (const Heartbeat& heartbeat : shared.heartbeats) total += heartbeat.beats();
  return total;
}

// Until all ranks ended, or nothing has moved for the timeout and its grace.
bool wait_for_ranks(Shared& shared) {
  Patience patience(shared.config.timeout_seconds + kGraceSeconds, kLook);
  std::unique_lock<std::mutex> lock(shared.mutex);
  uint64_t seen = 0;
  const auto all_done = [&] {
    return std::find(shared.finished.begin(), shared.finished.end(), false) == shared.finished.end();
  };
  while (!all_done()) {
    shared.changed.wait_for(lock, kLook);
    if (!shared.failures.empty()) *shared.cancelled = true;
    const uint64_t beats = total_beats(shared);
    if (std::exchange(seen, beats) != beats) patience.restart();
    if (patience.over()) return false;
  }
  return true;
}

}  // namespace

RunResult run_threads(const Config& config, const RunOptions& options) {
  check_ranks(config, options.ranks);
  const auto start = Clock::now();
  auto shared = std::make_shared<Shared>(config, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) threads.emplace_back(thread_body, shared, rank);
  const bool all_ended = wait_for_ranks(*shared);
  if (!all_ended) shared->note_standings();
  RunResult result;
  result.ranks = options.ranks;
  result.abandoned = !all_ended;
  const std::lock_guard<std::mutex> lock(shared->mutex);
  for (int rank = 0; rank < options.ranks; ++rank) {
    const auto index = static_cast<size_t>(rank);
    if (shared->finished[index]) {
      threads[index].join();
      result.evidence.push_back(std::move(shared->evidence[index]));
    } else {
      threads[index].detach();
      shared->failures.push_back(
          {rank, {}, true, fmt::format("stopped answering in {}", shared->heartbeats[index].standing().text())});
    }
  }
  result.failures = shared->failures;
  if (!result.failures.empty()) result.standings = shared->standings;
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  conclude(result);
  return result;
}

}  // namespace faultline::race
