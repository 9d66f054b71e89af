#include "screen/drill.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "recipe/recipe.h"
#include "screen/worker.h"
#include "tap/operator_tap.h"
#include "tap/plan.h"

namespace faultline::screen {
namespace {

constexpr std::size_t kMostMisses = 40;

// A rule for the taps, and the group whose results it spoils. The last of them act in a share of the calls.
struct TapFault {
  const char* rule;
  Group group;
  const char* operation;  // "": every operator of the group
};
constexpr std::array kTapFaults = {
    TapFault{"bitflip(field=mantissa, rate=0.0001) @ operator=matmul", Group::kProduct, ""},
    TapFault{"bitflip(field=exponent, rate=0.0001) @ operator=matmul", Group::kProduct, ""},
    TapFault{"gain(strength=0.05, extent.fraction=0.01, extent.structure=channel) @ operator=matmul", Group::kProduct,
             ""},
    TapFault{"zero(extent.fraction=0.01, extent.structure=channel) @ operator=matmul", Group::kProduct, ""},
    TapFault{"gain(strength=0.05) @ operator=attention", Group::kAttention, ""},
    TapFault{"bitflip(field=mantissa, rate=0.001) @ operator=attention", Group::kAttention, ""},
    TapFault{"gain(strength=0.05) @ operator=norm", Group::kNorm, ""},
    TapFault{"gain(strength=0.05) @ operator=softmax", Group::kNorm, "aten::softmax"},
    TapFault{"gain(strength=0.05) @ operator=activation", Group::kReduction, "aten::silu"},
    TapFault{"gain(strength=0.05) @ operator=embedding", Group::kGather, ""},
    TapFault{"gain(strength=0.05) @ operator=aten::sum", Group::kReduction, "aten::sum"}};

struct Trial {
  bool found = false, placed = false;
  std::string note;
};

class Drill {
 public:
  explicit Drill(const DrillOptions& options) : options_(options) {}

  DrillResult run() {
    const auto start = std::chrono::steady_clock::now();
    list_ = made(mix64(options_.seed, 1));
    const int64_t total = options_.trials + options_.healthy;
    int64_t done = 0;
    const auto tick = [&] {
      if (options_.progress) options_.progress(++done, total);
    };
    for (int64_t i = 0; i < options_.trials; ++i, tick()) {
      const auto which = static_cast<std::size_t>(i);
      switch (i % 4) {
        case 0:
        case 1: tap_trial(kTapFaults[(which / 4 * 2 + which % 4) % kTapFaults.size()], which); break;
        case 2: thread_trial(true, which); break;
        default: i % 8 == 3 ? thread_trial(false, which) : copy_trial(which); break;
      }
    }
    for (int64_t i = 0; i < options_.healthy; ++i, tick()) healthy_trial(static_cast<uint64_t>(i));
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result_;
  }

 private:
  WorkList made(uint64_t seed) const {
    return work_list({.device = options_.device, .seed = seed, .memory_bytes = int64_t{16} << 20});
  }

  WorkerOptions worker(uint64_t number) const {
    WorkerOptions worker;
    worker.device = options_.device, worker.seconds = options_.seconds, worker.idle = false;
    worker.seed = mix64(options_.seed ^ 0x6472696C6C, number);
    worker.batch_seconds = 0.005, worker.batch_bytes = int64_t{256} << 20;
    return worker;
  }

  DrillRow& row(const std::string& source, const std::string& what) {
    for (DrillRow& one : result_.rows)
      if (one.source == source && one.what == what) return one;
    return result_.rows.emplace_back(DrillRow{source, what});
  }

  void count(const std::string& source, const std::string& what, const Trial& trial) {
    DrillRow& one = row(source, what);
    ++one.planted, one.found += trial.found ? 1 : 0, one.placed += trial.placed ? 1 : 0;
    if (!trial.placed && result_.misses.size() < kMostMisses)
      result_.misses.push_back(fmt::format("{}: {}: {}{}", source, what,
                                           trial.found ? "found at another place" : "missed",
                                           trial.note.empty() ? "" : "; " + trial.note));
  }

  bool has(const TapFault& fault) const {
    return std::any_of(list_.checks.begin(), list_.checks.end(),
                       [&](const auto& check) { return meant(fault, *check); });
  }
  static bool meant(const TapFault& fault, const Check& check) {
    return check.group == fault.group && (*fault.operation == 0 || check.operation == fault.operation);
  }

  // Every other one acts in a part of the calls only, and is held against its rate.
  void tap_trial(const TapFault& fault, std::size_t number) {
    if (!has(fault)) return;
    const double probability = number % 8 < 4 ? 1 : 0.25;
    std::string text = fault.rule;
    if (probability < 1) {
      const std::size_t end = text.find(") @");
      text.insert(end, ", lifetime.kind=transient, lifetime.probability=0.25");
    }
    numeric::Rule rule = numeric::parse_rule(text, numeric::RuleUse::kInPlan);
    recipe::PlanSpec spec = recipe::read_plan_spec(recipe::recipe_of_rules({rule}, mix64(options_.seed, number)));
    const auto plan = std::make_shared<tap::Plan>(std::move(spec.rules), spec.settings);
    tap::arm(plan);
    WorkerResult result;
    try {
      result = run_worker(list_, worker(number));
    } catch (...) {
      tap::disarm();
      throw;
    }
    tap::disarm();
    double acted = 0, changed = 0, calls = 0;
    for (const tap::Plan::Evidence& evidence : plan->read_evidence())
      calls += evidence.numbers.calls, acted += evidence.numbers.active_calls, changed += evidence.numbers.changed;
    if (changed == 0) {
      result_.misses.push_back(fmt::format("tap: {}: nothing was changed, so nothing was planted", text));
      return;
    }
    Trial trial;
    trial.placed = true;
    for (std::size_t i = 0; i < list_.checks.size(); ++i) {
      const Spent& spent = result.spent[i];
      if (meant(fault, *list_.checks[i])) {
        trial.found = trial.found || spent.wrong > 0;
        if (probability < 1 && fault.group == Group::kProduct)
          result_.rate_launches += spent.launches, result_.rate_wrong += spent.wrong;
      } else if (spent.wrong > 0 && list_.checks[i]->group != fault.group) {
        trial.placed = false, trial.note = fmt::format("{} was accused", list_.checks[i]->name);
      }
    }
    if (probability < 1 && fault.group == Group::kProduct)
      result_.rate_calls += static_cast<int64_t>(calls), result_.rate_acted += static_cast<int64_t>(acted);
    trial.placed = trial.placed && trial.found;
    count("tap", fault.rule, trial);
  }

  Check* check_of(Group group) const {
    for (const auto& check : list_.checks)
      if (check->group == group) return check.get();
    return nullptr;
  }

  // Another thread flips one bit of memory under test, or of an operand, while the screen runs, and turns it back
  // later.
  void thread_trial(bool memory, std::size_t number) {
    Check* const check = check_of(memory ? Group::kMemory : Group::kProduct);
    if (check == nullptr) return;
    const uint64_t word = mix64(options_.seed ^ 0x746872656164, number);
    const std::size_t chunk = memory ? word % check->memory->chunks.size() : word % check->inputs.size();
    const at::Tensor words = memory ? check->memory->chunks[chunk].words : check->inputs[chunk].tensor;
    const bool narrow = words.element_size() == 2;
    at::Tensor bits = words.view(narrow ? at::kShort : at::kInt).view(-1);
    // Of an operand: the sign of a number that is not 0.
    at::Tensor places = memory ? at::Tensor() : words.cpu().view(-1).to(at::kFloat).nonzero().view(-1);
    const auto element =
        memory ? static_cast<int64_t>((word >> 8) % static_cast<uint64_t>(bits.numel()))
               : places[static_cast<int64_t>((word >> 8) % static_cast<uint64_t>(places.numel()))].item<int64_t>();
    const int bit = memory ? static_cast<int>(word >> 40 & 31) : (narrow ? 15 : 31);
    const int64_t mask = narrow ? static_cast<int16_t>(uint16_t{1} << bit) : static_cast<int32_t>(uint32_t{1} << bit);
    const at::Tensor one = bits.narrow(0, element, 1);
    const auto flip = [&, device = options_.device] {
      const c10::DeviceGuard guard(device);
      const tap::TapsSuspended suspended;
      one.bitwise_xor_(mask);
    };
    // Memory keeps what it is given until it is written again: the flip must come between a write and a look.
    std::thread outside;
    WorkerOptions options = worker(number);
    bool flipped = false;
    options.between = [&](WorkList&) {
      if (flipped) return;
      flipped = true;
      outside = std::thread(flip);
      outside.join();
    };
    const WorkerResult result = run_worker(list_, options);
    if (flipped && !memory) flip();  // operands are used again
    if (!flipped) return;
    Trial trial;
    for (const Failure& failure : result.failures) {
      trial.found = true;
      trial.placed =
          trial.placed ||
          (memory ? failure.group == Group::kMemory && failure.element == element &&
                        failure.stage == fmt::format("chunk {}", chunk) && failure.changed_bits == uint64_t{1} << bit
                  : failure.check == check->name && !failure.broken_inputs.empty() &&
                        failure.broken_inputs[0] == check->inputs[chunk].name && failure.suspect == Suspect::kMemory);
    }
    count("thread", memory ? "a bit of memory under test" : "a bit of a product's operand", trial);
  }

  // A bit of a buffer that the chain's next copy reads.
  void copy_trial(std::size_t number) {
    Check* const check = check_of(Group::kCopy);
    if (check == nullptr) return;
    const uint64_t word = mix64(options_.seed ^ 0x636F7079, number);
    const auto run = check->run;
    int64_t calls = 0;
    const auto at_call = int64_t{1};  // at its first launch
    check->run = [&](const Disturb& disturb) {
      if (++calls < at_call || disturb) return run(disturb);
      return run([&](const at::Tensor& buffer) {
        std::thread([&] {
          const c10::DeviceGuard guard(options_.device);
          at::Tensor bits = buffer.view(at::kInt);
          bits.narrow(0, static_cast<int64_t>((word >> 8) % static_cast<uint64_t>(bits.numel())), 1)
              .bitwise_xor_(1 << 20);
        }).join();
      });
    };
    const WorkerResult result = run_worker(list_, worker(number));
    check->run = run;
    if (calls < at_call) return;
    Trial trial;
    for (const Failure& failure : result.failures) {
      trial.found = true;
      trial.placed = trial.placed || (failure.group == Group::kCopy && failure.wrong_elements == 1 &&
                                      failure.changed_bits == 1 << 20 && failure.stage.starts_with("copy 6"));
    }
    count("thread", "a bit of a buffer between two copies", trial);
  }

  void healthy_trial(uint64_t number) {
    WorkList fresh = made(mix64(options_.seed ^ 0x6865616C7468, number));
    const WorkerResult result = run_worker(fresh, worker(number + (uint64_t{1} << 32)));
    ++result_.healthy;
    result_.healthy_launches += result.launches();
    if (result.wrong() == 0 && result.missed_canaries.empty() && result.broken_off.empty()) return;
    ++result_.accused;
    result_.misses.push_back(fmt::format(
        "healthy screen {}: {}", number,
        result.failures.empty() ? result.broken_off + joined(result.missed_canaries) : result.failures[0].check));
  }
  static std::string joined(const std::vector<std::string>& sentences) {
    return sentences.empty() ? "" : sentences.front();
  }

  const DrillOptions& options_;
  WorkList list_;
  DrillResult result_;
};

template <class Member>
int64_t summed(const DrillResult& result, Member member) {
  int64_t sum = 0;
  for (const DrillRow& row : result.rows) sum += row.*member;
  return sum;
}

}  // namespace

int64_t DrillResult::planted() const { return summed(*this, &DrillRow::planted); }
int64_t DrillResult::found() const { return summed(*this, &DrillRow::found); }
int64_t DrillResult::placed() const { return summed(*this, &DrillRow::placed); }
bool DrillResult::passed() const { return planted() > 0 && 100 * placed() >= 99 * planted() && accused == 0; }

DrillResult drill(const DrillOptions& options) {
  const c10::DeviceGuard guard(options.device);
  return Drill(options).run();
}

Json to_json(const DrillResult& result) {
  Json rows = Json::array();
  for (const DrillRow& row : result.rows)
    rows.push_back({{"source", row.source},
                    {"what", row.what},
                    {"planted", row.planted},
                    {"found", row.found},
                    {"placed", row.placed}});
  return {{"rows", rows},
          {"planted", result.planted()},
          {"found", result.found()},
          {"placed", result.placed()},
          {"misses", result.misses},
          {"healthy", result.healthy},
          {"healthy_launches", result.healthy_launches},
          {"accused", result.accused},
          {"rate",
           {{"calls", result.rate_calls},
            {"acted", result.rate_acted},
            {"launches", result.rate_launches},
            {"wrong", result.rate_wrong}}},
          {"seconds", result.seconds},
          {"passed", result.passed()}};
}

}  // namespace faultline::screen
