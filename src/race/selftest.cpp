#include "race/selftest.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "base/text.h"
#include "race/run.h"

namespace faultline::race {
namespace {

constexpr int kRanks = 4;
constexpr size_t kMaxMisses = 50;
constexpr std::array kKinds = {FaultType::kBitFlip, FaultType::kZero,    FaultType::kStale,
                               FaultType::kSwap,    FaultType::kPartial, FaultType::kNan};

struct Setting {
  const char* name;
  const char* config;
};
constexpr std::array kSettings = {
    Setting{"fsdp, shared weights, bf16", "mode: fsdp, shared_layer_weights: true, fsdp_shard_size: 4099, dtype: bf16"},
    Setting{"fsdp, own weights, fp32",
            "mode: fsdp, fsdp_shard_size: 1000, dtype: fp32, real_backward: true, same_stream_mode: true"},
    Setting{"fsdp, gathered weights consumed, fp16",
            "mode: fsdp, fsdp_shard_size: 2048, dtype: fp16, consume_gathered: true, shared_layer_weights: true, "
            "optimizer: adamw"},
    Setting{"ddp, bucketed, fp16",
            "mode: ddp, allreduce_tensor_size: 3000, dtype: fp16, ddp_bucketed: true, optimizer: sgd"},
    Setting{"default, bf16",
            "mode: default, alltoall_tensor_size: 4096, allreduce_tensor_size: 2000, dtype: bf16, h2d_prefetch: true"}};

Config config_of(const Setting& setting, int64_t iterations, uint64_t seed) {
  Config config = parse_config(parse_yaml(
      fmt::format(
          "{{{}, warmup_iterations: 0, verify_iterations: {}, stop_on_first_corruption: false, h2d_tensor_size: 1500, "
          "compute_type: transformer, model_dim: 32, num_heads: 2, num_layers: 4, seq_len: 8, timeout_seconds: 60}}",
          setting.config, iterations),
      "selftest"));
  config.seed = seed;
  return config;
}

struct Plan {
  FaultType kind;
  Site site;
};

Cause cause_at(Place place) {
  switch (place) {
    case Place::kCommInput: return Cause::kLocalMemory;
    case Place::kCommOutput:
    case Place::kReduce: return Cause::kCollective;
    case Place::kComputeInput: return Cause::kReferenceBuffer;
    case Place::kComputeOutput: return Cause::kCompute;
    default: return Cause::kH2dCopy;
  }
}

// One fault an iteration, ranks and layers in turn.
std::vector<Plan> plan_faults(const Config& config, int64_t passes, uint64_t seed) {
  std::vector<Plan> plans;
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (int place = 0; place < kPlaces; ++place) {
      for (const FaultType kind : kKinds) {
        const auto iteration = static_cast<int64_t>(plans.size());
        const uint64_t word = mix64(seed, static_cast<uint64_t>(iteration));
        const auto layer = static_cast<Place>(place) == Place::kH2d
                               ? -1
                               : static_cast<int64_t>(word % static_cast<uint64_t>(config.layers()));
        plans.push_back({kind, {static_cast<Place>(place), iteration, layer, static_cast<int>((word >> 32) % kRanks)}});
      }
    }
  }
  return plans;
}

// What the run said about each iteration.
std::map<int64_t, std::vector<Event>> events_by_iteration(const RunResult& result) {
  std::map<int64_t, std::vector<Event>> found;
  for (const RankEvidence& evidence : result.evidence)
    for (const TimedEvent& event : evidence.findings.events.items()) found[event.iteration].push_back(event.event);
  return found;
}

std::string describe_events(const std::vector<Event>& events) {
  std::string text;
  for (const Event& e : events)
    text += fmt::format(" [{} rank {} layer {} {}]", cause_name(e.cause), e.rank, e.layer, e.operation);
  return text.empty() ? " nothing" : text;
}

class Selftest {
 public:
  explicit Selftest(const SelftestOptions& options)
      : options_(options), passes_(options.full ? 6 : 1), outside_(options.full ? 216 : 24) {
    result_.ranks = kRanks;
    total_ = static_cast<int64_t>(kSettings.size()) * (passes_ * kPlaces * static_cast<int64_t>(kKinds.size()) + 1) +
             outside_ + 12;
  }

  SelftestResult run() {
    const auto start = std::chrono::steady_clock::now();
    for (const Setting& setting : kSettings) {
      plant_by_hooks(setting);
      run_clean(setting);
    }
    plant_delays();
    if (options_.device.is_cpu()) plant_from_outside();
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(result_);
  }

 private:
  RunOptions run_options() const {
    RunOptions run;
    run.ranks = kRanks;
    run.device = options_.device;
    return run;
  }

  void advance() {
    if (options_.progress) options_.progress(++done_, total_);
  }

  SelftestRow& row(const char* source, const char* setting, const Plan& plan) {
    for (SelftestRow& row : result_.rows)
      if (row.source == source && row.setting == setting && row.kind == plan.kind && row.place == plan.site.place)
        return row;
    result_.rows.push_back({source, setting, plan.kind, plan.site.place, 0, 0, 0});
    return result_.rows.back();
  }

  void miss(const std::string& sentence) {
    if (result_.misses.size() < kMaxMisses) result_.misses.push_back(sentence);
  }

  void account(const char* source, const char* setting, const std::vector<Plan>& plans, const RunResult& run) {
    if (!run.failures.empty()) miss(fmt::format("{}: {}", setting, run.sentence));
    const auto events = events_by_iteration(run);
    for (const Plan& plan : plans) {
      SelftestRow& into = row(source, setting, plan);
      const auto found = events.find(plan.site.iteration);
      const std::vector<Event> seen = found == events.end() ? std::vector<Event>{} : found->second;
      const bool right = seen.size() == 1 && seen[0].cause == cause_at(plan.site.place) &&
                         seen[0].rank == plan.site.rank && seen[0].layer == plan.site.layer;
      ++into.planted;
      into.detected += !seen.empty();
      into.attributed += right;
      if (!right)
        miss(fmt::format("{} from a {}, {} at {} of rank {} layer {} in iteration {}: the run said{}", setting, source,
                         fault_type_name(plan.kind), place_name(plan.site.place), plan.site.rank, plan.site.layer,
                         plan.site.iteration, describe_events(seen)));
      advance();
    }
  }

  void plant_by_hooks(const Setting& setting) {
    Config config = config_of(setting, 1, options_.seed);
    const std::vector<Plan> plans = plan_faults(config, passes_, options_.seed + 1);
    config.verify_iterations = static_cast<int64_t>(plans.size());
    for (const Plan& plan : plans) {
      Injection fault;
      fault.target = plan.site.place;
      fault.kind = plan.kind;
      fault.rank = plan.site.rank;
      fault.iteration = plan.site.iteration;
      if (plan.site.layer >= 0) fault.layer = plan.site.layer;
      fault.seed = options_.seed + 2;
      config.inject.push_back(fault);
    }
    account("hook", setting.name, plans, run_threads(config, run_options()));
  }

  void run_clean(const Setting& setting) {
    const Config config = config_of(setting, options_.full ? 240 : 20, options_.seed + 3);
    const RunResult run = run_threads(config, run_options());
    result_.clean_iterations += run.iterations();
    if (run.verdict != Verdict::kPass) {
      ++result_.clean_alarms;
      miss(fmt::format("a clean run ({}) ended with: {}", setting.name, run.sentence));
    }
    advance();
  }

  // A delay changes no byte: it must be seen as a slow rank, and as nothing else.
  void plant_delays() {
    Config config = config_of(kSettings[0], 6, options_.seed);
    std::vector<Plan> plans;
    for (int64_t i = 0; i < (options_.full ? 12 : 4); ++i) {
      const Place place = std::array{Place::kCommInput, Place::kCommOutput, Place::kComputeOutput,
                                     Place::kReduce}[static_cast<size_t>(i % 4)];
      plans.push_back({FaultType::kDelay, {place, i, 1 + i % 2, static_cast<int>(i % kRanks)}});
      Injection fault;
      fault.target = place;
      fault.kind = FaultType::kDelay;
      fault.rank = i % kRanks, fault.iteration = i, fault.layer = 1 + i % 2;
      config.inject.push_back(fault);
    }
    config.verify_iterations = static_cast<int64_t>(plans.size());
    const RunResult run = run_threads(config, run_options());
    for (const Plan& plan : plans) {
      SelftestRow& into = row("hook", kSettings[0].name, plan);
      ++into.planted;
      bool seen = false, corrupted = false;
      for (const RankEvidence& evidence : run.evidence) {
        corrupted |= evidence.findings.corrupted();
        for (const SlowNote& note : evidence.findings.slow.items())
          seen |= note.iteration == plan.site.iteration && note.rank == plan.site.rank;
      }
      into.detected += seen;
      into.attributed += seen && !corrupted;
      if (!seen || corrupted)
        miss(fmt::format("a delay of rank {} in iteration {} was {}", plan.site.rank, plan.site.iteration,
                         seen ? "called a corruption" : "not noticed"));
      advance();
    }
  }

  // Raw memory, no tensor: what a stray DMA would do.
  static void scribble(const PausePoints::Pause& pause, FaultType kind, uint64_t word) {
    auto* bytes = static_cast<unsigned char*>(pause.data);
    const auto size = static_cast<uint64_t>(pause.bytes), width = static_cast<uint64_t>(pause.element_size);
    const uint64_t at = (word % (size / width)) * width;
    switch (kind) {
      case FaultType::kZero: {
        const uint64_t length = std::min<uint64_t>(64 * width, size);
        std::memset(bytes + std::min(at, size - length), 0, length);
        break;
      }
      case FaultType::kSwap: {  // the first pair that differs
        uint64_t other = (at + width) % size;
        while (std::memcmp(bytes + at, bytes + other, width) == 0) other = (other + width) % size;
        std::swap_ranges(bytes + at, bytes + at + width, bytes + other);
        break;
      }
      case FaultType::kPartial: std::memmove(bytes + size / 2, bytes, size - size / 2); break;  // the first half again
      default: bytes[at + word % width] ^= static_cast<unsigned char>(1u << ((word >> 8) % 8)); break;
    }
  }

  void plant_from_outside() {
    constexpr std::array kOutsideKinds = {FaultType::kBitFlip, FaultType::kZero, FaultType::kSwap, FaultType::kPartial};
    Config config = config_of(kSettings[0], outside_, options_.seed);
    PausePoints pauses;
    std::vector<Plan> plans;
    for (int64_t i = 0; i < outside_; ++i) {
      const uint64_t word = mix64(options_.seed + 5, static_cast<uint64_t>(i));
      const auto place = static_cast<Place>(i % kPlaces);
      const int64_t layer = place == Place::kH2d ? -1 : static_cast<int64_t>(word % 4);
      plans.push_back({kOutsideKinds[static_cast<size_t>(i / kPlaces) % kOutsideKinds.size()],
                       {place, i, layer, static_cast<int>((word >> 20) % kRanks)}});
      pauses.ask(plans.back().site);
    }
    std::thread writer([&] {
      for (const Plan& plan : plans) {
        PausePoints::Pause pause;
        if (!pauses.await(plan.site, pause, 60)) return;
        scribble(pause, plan.kind, mix64(options_.seed + 6, static_cast<uint64_t>(plan.site.iteration)));
        pauses.release(plan.site);
      }
    });
    RunOptions run = run_options();
    run.hooks = {&pauses};
    const RunResult result = run_threads(config, run);
    writer.join();
    account("thread", kSettings[0].name, plans, result);
  }

  SelftestOptions options_;
  SelftestResult result_;
  int64_t passes_, outside_, total_ = 0, done_ = 0;
};

}  // namespace

SelftestResult selftest(const SelftestOptions& options) { return Selftest(options).run(); }

}  // namespace faultline::race
