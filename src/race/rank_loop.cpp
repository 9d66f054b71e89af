#include "race/rank_loop.h"

#include <ATen/Context.h>

#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "base/stats/stats.h"
#include "race/iteration.h"

namespace faultline::race {
namespace {

constexpr double kSlowSeconds = 0.2;
constexpr double kSlowFactor = 10;

// The fault that every run begins with: one bit in the last rank's middle layer, on the most watched record.
Injection canary_fault(const Config& config, int ranks) {
  Injection fault;
  const bool seen = config.patterns || config.digest_of(Key::kCommOutput) != DigestTiming::kOff;
  fault.target = seen ? Place::kCommOutput : Place::kComputeOutput;
  fault.layer = config.layers() / 2;
  fault.rank = ranks - 1;
  fault.iteration = kCanaryIteration;
  return fault;
}

}  // namespace

class RankLoop::Impl {
 public:
  Impl(const Config& config, const RankOptions& options, c10::intrusive_ptr<c10d::Backend> data,
       c10::intrusive_ptr<c10d::Backend> control)
      : config_(config), options_(options), control_(std::move(control)), step_(config, options, std::move(data)) {
    FL_ASSERT(options.heartbeat != nullptr);
    reference_ = options.reference;
    if (config.deterministic) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }

  void run(RankEvidence& evidence) {
    change([&] { evidence.rank = options_.rank; });
    if (config_.canary) run_canary(evidence);
    for (int64_t i = -config_.warmup_iterations; i < 0; ++i) {
      step_.run(i, {.verify = false, .digests = false});
      if (exchange_stop(i)) return finish(evidence, true);
    }
    for (int64_t i = 0; i < config_.verify_iterations; ++i) {
      const bool digests = config_.digests() && (!options_.alternate_digests || i % 2 == 0);
      const bool stop = verify(i, digests, evidence.findings);
      change([&] {
        (digests ? evidence.step_seconds : evidence.step_seconds_plain).add(step_.device_seconds());
        ++evidence.iterations;
      });
      const bool last = i + 1 == config_.verify_iterations;
      if (options_.progress && (last || (i + 1) % config_.log_interval == 0))
        options_.progress(i + 1, config_.verify_iterations);
      if (interrupted_) return finish(evidence, true);
      if (stop) {
        change([&] { evidence.stopped = true; });
        break;
      }
    }
    finish(evidence, false);
  }

 private:
  // Everything that writes into the evidence does it here, and waits for nobody there.
  template <class Body>
  void change(const Body& body) {
    std::unique_lock<std::mutex> lock;
    if (options_.evidence_mutex != nullptr) lock = std::unique_lock<std::mutex>(*options_.evidence_mutex);
    body();
  }

  void finish(RankEvidence& evidence, bool interrupted) {
    change([&] {
      evidence.interrupted = interrupted;
      evidence.reference = reference_;
      evidence.collectives = step_.collectives();
      evidence.collective_bytes = step_.collective_bytes();
    });
  }

  bool wants_to_stop() const { return options_.interrupted != nullptr && *options_.interrupted; }

  // Every rank's words, in the order of ranks.
  std::vector<std::vector<int64_t>> exchange(int64_t iteration, const std::vector<int64_t>& mine) {
    options_.heartbeat->reach(iteration, -1, "exchange", true);
    at::Tensor input = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
    std::copy(mine.begin(), mine.end(), input.mutable_data_ptr<int64_t>());
    at::Tensor output = at::empty({options_.ranks * input.numel()}, at::kLong);
    control_->_allgather_base(output, input)->wait();
    options_.heartbeat->go_on();
    std::vector<std::vector<int64_t>> all;
    const auto* words = output.const_data_ptr<int64_t>();
    for (int64_t rank = 0; rank < options_.ranks; ++rank)
      all.emplace_back(words + rank * input.numel(), words + (rank + 1) * input.numel());
    return all;
  }

  bool exchange_stop(int64_t iteration) {
    const auto all = exchange(iteration, {wants_to_stop()});
    return std::any_of(all.begin(), all.end(), [](const auto& words) { return words[0] != 0; });
  }

  // One verified iteration; true where all ranks are to stop.
  bool verify(int64_t iteration, bool digests, Findings& findings) {
    RankRecord mine = step_.run(iteration, {.verify = true, .digests = digests});
    mine.stop = wants_to_stop();
    note_times(mine);
    std::vector<RankRecord> ranks;
    for (const auto& words : exchange(iteration, pack(mine, options_.ranks)))
      ranks.push_back(unpack(words.data(), config_.layers(), options_.ranks));
    const std::vector<Deviation> deviations = judge(config_, ranks, reference_);
    const std::vector<Event> events = attribute(config_, ranks, deviations);
    change([&] {
      for (const Deviation& deviation : deviations)
        if (deviation.rank == options_.rank) findings.deviations.add({iteration, deviation});
      for (const Event& event : events)
        if (event.rank == options_.rank) findings.events.add({iteration, event});
      for (Mismatch& mismatch : step_.take_mismatches()) findings.mismatches.add(std::move(mismatch));
      note_slow(iteration, findings);
      note_slow_call(iteration, ranks, findings);
    });
    interrupted_ = std::any_of(ranks.begin(), ranks.end(), [](const RankRecord& r) { return r.stop; });
    // Every rank judged the same table, so every rank decides alike.
    const bool found = !events.empty() || !deviations.empty() || any_check_failed(ranks);
    return found && config_.stop_on_first_corruption;
  }

  static bool any_check_failed(const std::vector<RankRecord>& ranks) {
    return std::any_of(ranks.begin(), ranks.end(), [](const RankRecord& rank) {
      return rank.h2d_failed || std::any_of(rank.layers.begin(), rank.layers.end(),
                                            [](const LayerRecord& layer) { return layer.failed_checks != 0; });
    });
  }

  void note_times(RankRecord& mine) const {
    if (!options_.watches_calls) return;
    const std::vector<double>& local = step_.local_seconds();
    mine.call_microseconds = static_cast<int64_t>(step_.call_seconds() * 1e6);
    mine.call_layer = step_.call_layer();
    if (!local.empty())
      mine.own_microseconds = static_cast<int64_t>(*std::max_element(local.begin(), local.end()) * 1e6);
  }

  // The first iteration's calls may connect the ranks.
  void note_slow_call(int64_t iteration, const std::vector<RankRecord>& ranks, Findings& findings) {
    if (!options_.watches_calls || ranks.size() < 2 || (iteration <= 0 && !config_.canary)) return;
    const RankRecord& mine = ranks[static_cast<size_t>(options_.rank)];
    int64_t others = 0;
    for (const RankRecord& rank : ranks)
      if (&rank != &mine) others = std::max({others, rank.call_microseconds, rank.own_microseconds});
    const double seconds = 1e-6 * static_cast<double>(mine.call_microseconds),
                 usual = 1e-6 * static_cast<double>(others);
    if (seconds > kSlowSeconds && seconds > kSlowFactor * usual)
      findings.slow.add({options_.rank, iteration, mine.call_layer, seconds, usual});
  }

  void note_slow(int64_t iteration, Findings& findings) {
    const std::vector<double>& local = step_.local_seconds();
    const double usual = upper_median(local);
    for (size_t i = 0; i < local.size(); ++i) {
      if (local[i] > kSlowSeconds && local[i] > kSlowFactor * usual)
        findings.slow.add({options_.rank, iteration, step_.local_layer(i), local[i], usual});
    }
  }

  void run_canary(RankEvidence& evidence) {
    const Injection fault = canary_fault(config_, options_.ranks);
    Injector injector({fault}, std::make_shared<std::atomic<bool>>(false), false);
    step_.add_hook(&injector);
    Findings findings;
    const Reference before = reference_;
    (void)verify(kCanaryIteration, config_.digests(), findings);
    reference_ = before;
    step_.remove_hook(&injector);
    const bool mine = *fault.rank == options_.rank;
    const Cause wanted = fault.target == Place::kCommOutput ? Cause::kCollective : Cause::kCompute;
    const bool attributed =
        mine
            ? std::any_of(findings.events.items().begin(), findings.events.items().end(),
                          [&](const TimedEvent& e) { return e.event.cause == wanted && e.event.layer == *fault.layer; })
            : findings.events.count() == 0;
    change([&] { evidence.canary = {true, findings.corrupted() == mine, attributed}; });
  }

  Config config_;
  RankOptions options_;
  c10::intrusive_ptr<c10d::Backend> control_;
  Iteration step_;
  Reference reference_;
  bool interrupted_ = false;
};

RankLoop::RankLoop(const Config& config, const RankOptions& options, c10::intrusive_ptr<c10d::Backend> data,
                   c10::intrusive_ptr<c10d::Backend> control)
    : impl_(std::make_unique<Impl>(config, options, std::move(data), std::move(control))) {}
RankLoop::~RankLoop() = default;
void RankLoop::run(RankEvidence& evidence) { impl_->run(evidence); }

}  // namespace faultline::race
