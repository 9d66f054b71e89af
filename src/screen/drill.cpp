#include "screen/drill.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/stats/stats.h"
#include "base/text.h"
#include "recipe/recipe.h"
#include "screen/drill_outside.h"
#include "screen/worker.h"
#include "tap/operator_tap.h"
#include "tap/plan.h"

namespace faultline::screen {
namespace {

constexpr std::size_t kMostMisses = 40;
constexpr double kMissed = 1e-6, kRateAlarm = 1e-4;

// Rules for the taps. One element a call is the least that a broken unit can do.
struct TapFault {
  const char *what, *where;
  bool one_element = false;
};
constexpr std::array kTapFaults = {
    TapFault{"bitflip(count=1", "operator=matmul", true},
    TapFault{"bitflip(count=1, bit=0", "operator=matmul", true},
    TapFault{"bitflip(count=1", "operator=attention"},
    TapFault{"gain(strength=0.05, extent.fraction=0.05, extent.structure=channel", "operator=matmul"},
    TapFault{"zero(extent.fraction=0.05, extent.structure=channel", "operator=matmul"},
    TapFault{"swap(length=16", "operator=matmul"},
    TapFault{"gain(strength=0.05", "operator=attention"},
    TapFault{"gain(strength=0.05", "operator=norm"},
    TapFault{"bitflip(count=1", "operator=norm"},
    TapFault{"gain(strength=0.05", "operator=softmax"},
    TapFault{"gain(strength=0.05", "operator=activation"},
    TapFault{"gain(strength=0.05", "operator=aten::index_select"},
    TapFault{"gain(strength=0.05", "operator=aten::sum"},
    TapFault{"bitflip(count=1", "operator=aten::amax"},
    TapFault{"bitflip(count=1", "operator=aten::addcmul"}};
constexpr std::array kRates = {1.0, 0.25, 0.05};

// The taps of one rule while it lives.
class Armed {
 public:
  Armed(const std::string& rule, uint64_t seed) {
    recipe::PlanSpec spec =
        recipe::read_plan_spec(recipe::recipe_of_rules({numeric::parse_rule(rule, numeric::RuleUse::kInPlan)}, seed));
    plan_ = std::make_shared<tap::Plan>(std::move(spec.rules), spec.settings);
    tap::arm(plan_);
  }
  ~Armed() { tap::disarm(); }
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;

  struct Counts {
    double calls = 0, changed = 0;
  };
  Counts counts() const {
    Counts all;
    for (const tap::Plan::Evidence& one : plan_->read_evidence())
      all.calls += one.numbers.calls, all.changed += one.numbers.changed;
    return all;
  }

 private:
  std::shared_ptr<tap::Plan> plan_;
};

class Drill {
 public:
  explicit Drill(const DrillOptions& options) : options_(options) {}

  DrillResult run() {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto since = [](Clock::time_point then) {
      return std::chrono::duration<double>(Clock::now() - then).count();
    };
    if (options_.trials > 0) list_ = made(mix64(options_.seed, 1), options_.large);
    const int64_t total = options_.trials + options_.healthy;
    int64_t done = 0;
    const auto tick = [&] {
      if (options_.progress) options_.progress(++done, total);
    };
    for (int64_t i = 0; i < options_.trials && since(start) < options_.most_seconds; ++i, tick()) {
      const auto number = static_cast<std::size_t>(i), turn = number / 4;
      switch (i % 4) {
        case 0:
        case 1: tap_trial(2 * turn + number % 4); break;
        case 2: outside_trial(turn % 3, number); break;
        default: copy_trial(turn, number); break;
      }
    }
    const auto healthy = Clock::now();
    for (int64_t i = 0; i < options_.healthy && since(healthy) < options_.most_seconds; ++i, tick())
      healthy_trial(static_cast<uint64_t>(i));
    result_.healthy_seconds = since(healthy), result_.seconds = since(start);
    return result_;
  }

 private:
  WorkList made(uint64_t seed, bool large) const {
    return work_list({.device = options_.device,
                      .seed = seed,
                      .large = large,
                      .memory_bytes = int64_t{8} << 20,
                      .copy_bytes = int64_t{1} << 20});
  }

  WorkerOptions worker(uint64_t number, double rate) const {
    WorkerOptions worker;
    worker.device = options_.device, worker.seed = mix64(options_.seed ^ 0x6472696C6C, number);
    worker.rounds = 1 + launches_for(rate) / kLaunchesInRound;
    return worker;
  }

  void count(const std::string& source, const std::string& what, const Trial& trial) {
    auto row = std::find_if(result_.rows.begin(), result_.rows.end(),
                            [&](const DrillRow& one) { return one.source == source && one.what == what; });
    if (row == result_.rows.end()) row = result_.rows.insert(row, DrillRow{source, what});
    ++row->planted, row->found += trial.found ? 1 : 0, row->placed += trial.placed ? 1 : 0;
    if (trial.rate) ++row->rated, row->rate_right += *trial.rate ? 1 : 0;
    const bool right = trial.placed && trial.rate.value_or(true);
    if (right || result_.misses.size() >= kMostMisses) return;
    result_.misses.push_back(fmt::format("{}: {}: {}{}", source, what,
                                         !trial.found    ? "missed"
                                         : !trial.placed ? "found at another place"
                                                         : "found at another rate",
                                         trial.note.empty() ? "" : "; " + trial.note));
  }

  // Which checks call the operator, and in which of them the fault changes something, by the ledger alone.
  struct Truth {
    std::vector<double> calls, changed;  // of one launch
  };
  Truth truth_of(const std::string& rule, uint64_t seed) {
    const Armed armed(rule, seed);
    Truth truth;
    Armed::Counts before;
    for (const auto& check : list_.checks) {
      if (!check->memory) check->run({});
      const Armed::Counts now = armed.counts();
      truth.calls.push_back(now.calls - before.calls), truth.changed.push_back(now.changed - before.changed);
      before = now;
    }
    return truth;
  }

  void tap_trial(std::size_t turn) {
    const TapFault& fault = kTapFaults[turn % kTapFaults.size()];
    const double rate = kRates[turn / kTapFaults.size() % kRates.size()];
    const uint64_t seed = mix64(options_.seed, turn);
    const auto rule = [&](const char* lifetime) {
      return fmt::format("{}{}) @ {}", fault.what, lifetime, fault.where);
    };
    const Truth truth = truth_of(rule(""), seed);
    if (std::none_of(truth.changed.begin(), truth.changed.end(), [](double changed) { return changed > 0; })) {
      const std::string sentence = rule("") + ": no check of this list calls it";
      if (std::find(result_.not_planted.begin(), result_.not_planted.end(), sentence) == result_.not_planted.end())
        result_.not_planted.push_back(sentence);
      return;
    }
    WorkerResult result;
    {
      const Armed armed(
          rule(rate == 1 ? "" : fmt::format(", lifetime.kind=transient, lifetime.probability={}", rate).c_str()), seed);
      result = run_worker(list_, worker(turn, rate));
    }
    result_.planted_launches += result.launches();
    count("tap", rule(""), judged(fault, rate, truth, result));
  }

  Trial judged(const TapFault& fault, double rate, const Truth& truth, const WorkerResult& result) const {
    Trial trial;
    trial.found = trial.placed = true;
    int64_t wrong = 0, tested = 0;
    for (std::size_t i = 0; i < list_.checks.size(); ++i) {
      const Spent& spent = result.spent[i];
      const std::string& name = list_.checks[i]->name;
      if (truth.calls[i] == 0 && spent.wrong > 0) trial.placed = false, trial.note = name + " was accused";
      if (truth.changed[i] == 0) continue;
      if (spent.wrong == 0) trial.found = false, trial.note = name + " was never wrong";
      if (truth.calls[i] == 1) tested += spent.launches, wrong += spent.wrong;
    }
    for (const Failure& failure : result.failures) {
      const auto check = std::find_if(list_.checks.begin(), list_.checks.end(),
                                      [&](const auto& one) { return one->name == failure.check; });
      const auto index = static_cast<std::size_t>(check - list_.checks.begin());
      const bool one_bit = failure.wrong_elements == 1 && std::popcount(failure.changed_bits) == 1;
      const bool right = truth.calls[index] > 0 && failure.suspect == Suspect::kCompute &&
                         (!fault.one_element || truth.calls[index] > 1 || one_bit);
      if (!right)
        trial.placed = false, trial.note = fmt::format("{}: {}", failure.check, suspect_name(failure.suspect));
    }
    trial.placed = trial.placed && trial.found && !result.failures.empty();
    if (tested > 0) trial.rate = agrees(rate, wrong, tested);
    if (trial.rate == false) trial.note = fmt::format("{} of {} launches were wrong, rate {}", wrong, tested, rate);
    return trial;
  }

  void outside_trial(std::size_t which, std::size_t number) {
    constexpr std::array kWhat = {"one bit of memory under test, once", "one bit of memory under test, held",
                                  "one bit of an operand, once"};
    WorkerOptions options = worker(number, 1);
    options.rounds = 12;  // every pattern of the memory comes by
    Outside outside(list_, options_.device, static_cast<Outside::Kind>(which), mix64(options_.seed, number),
                    options.rounds);
    options.between = [&](WorkList&) { outside.between(); };
    const WorkerResult result = run_worker(list_, options);
    result_.planted_launches += result.launches();
    count("thread", kWhat[which], outside.judged(result));
  }

  void copy_trial(std::size_t turn, std::size_t number) {
    constexpr std::array kWays = {"a copy that loses 64 bytes", "a copy that flips a bit"};
    const double rate = kRates[turn / 2 % kRates.size()];
    WorkerOptions options = worker(number, rate);
    SpoiltCopies copies(list_, options_.device, turn % 2 == 0, rate, mix64(options_.seed, number));
    const WorkerResult result = run_worker(list_, options);
    result_.planted_launches += result.launches();
    count("copy", kWays[turn % 2], copies.judged(result));
  }

  void healthy_trial(uint64_t number) {
    WorkList fresh = made(mix64(options_.seed ^ 0x6865616C7468, number), false);
    WorkerOptions options = worker(number + (uint64_t{1} << 32), 1);
    options.rounds = 1;
    const WorkerResult result = run_worker(fresh, options);
    ++result_.healthy, result_.healthy_launches += result.launches();
    if (result.failures.empty() && result.missed_canaries.empty() && result.broken_off.empty()) return;
    ++result_.accused;
    result_.misses.push_back(fmt::format("healthy screen {}: {}", number,
                                         !result.failures.empty()     ? result.failures[0].check
                                         : !result.broken_off.empty() ? result.broken_off
                                                                      : result.missed_canaries[0]));
  }

  const DrillOptions& options_;
  WorkList list_;
  DrillResult result_;
};

}  // namespace

int64_t launches_for(double rate) {
  return rate >= 1 ? 1 : static_cast<int64_t>(std::ceil(std::log(kMissed) / std::log1p(-rate)));
}

bool agrees(double rate, int64_t wrong, int64_t tested) {
  if (rate >= 1) return wrong == tested;
  const Interval share = clopper_pearson_interval(wrong, tested, 1 - kRateAlarm);
  return share.low <= rate && rate <= share.high;
}

int64_t DrillResult::sum(int64_t DrillRow::* member) const {
  int64_t sum = 0;
  for (const DrillRow& row : rows) sum += row.*member;
  return sum;
}

bool DrillResult::passed() const {
  const int64_t planted = sum(&DrillRow::planted);
  return 100 * sum(&DrillRow::placed) >= 99 * planted &&
         100 * sum(&DrillRow::rate_right) >= 99 * sum(&DrillRow::rated) && accused == 0 && planted + healthy > 0;
}

DrillResult drill(const DrillOptions& options) {
  const c10::DeviceGuard guard(options.device);
  const at::NoGradGuard no_gradients;
  const ExactSums exact;
  const int threads = at::get_num_threads();
  if (options.device.is_cpu()) at::set_num_threads(1);  // as a core's screen has; more would only wait for each other
  const DrillResult result = Drill(options).run();
  at::set_num_threads(threads);
  return result;
}

Json to_json(const DrillResult& result) {
  Json rows = Json::array();
  for (const DrillRow& row : result.rows)
    rows.push_back({{"source", row.source},
                    {"what", row.what},
                    {"planted", row.planted},
                    {"found", row.found},
                    {"placed", row.placed},
                    {"rated", row.rated},
                    {"rate_right", row.rate_right}});
  return {{"rows", rows},
          {"planted", result.sum(&DrillRow::planted)},
          {"found", result.sum(&DrillRow::found)},
          {"placed", result.sum(&DrillRow::placed)},
          {"rated", result.sum(&DrillRow::rated)},
          {"rate_right", result.sum(&DrillRow::rate_right)},
          {"planted_launches", result.planted_launches},
          {"misses", result.misses},
          {"not_planted", result.not_planted},
          {"healthy", result.healthy},
          {"healthy_launches", result.healthy_launches},
          {"healthy_seconds", result.healthy_seconds},
          {"accused", result.accused},
          {"seconds", result.seconds},
          {"passed", result.passed()}};
}

}  // namespace faultline::screen
