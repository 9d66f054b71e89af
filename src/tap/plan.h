// A plan: the rules that are armed in this process, the sites they met, and the evidence. One plan is active at a time.
// A site is (rule, operator or boundary, place, phase); the first call that reaches it makes its row: random keys, a
// control row and a ledger row in device memory (Note [Control] in numeric/arguments.h). Strength, step and arming
// change by rewriting control rows, so captured CUDA graphs follow without being captured again, and nothing
// synchronises until the ledger is read.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "numeric/evidence.h"
#include "numeric/lower.h"
#include "site/boundary.h"
#include "tap/plan_rule.h"
#include "tap/routed.h"

namespace faultline {

struct PlanSettings {
  uint64_t seed = 0;
  Node phases;              // the recipe's, or null
  int64_t total_steps = 1;  // for schedules
  int64_t layer_count = 0;  // for per-layer schedules; 0: not known
};

// What a row has been asked to do, host side. Rows that no rule may act on keep the reason, for the coverage report.
struct Row {
  const PlanRule* rule = nullptr;
  std::string target;  // operator base name, or "boundary"
  PlaceId place = kNowhere;
  Phase phase = Phase::kRollout;
  std::string unreached;  // why the rule does not act here, for good; "": it does
  Keys keys;
  at::Tensor control;
  at::Tensor ledger;
  Dtype dtype = Dtype::kFloat32;
  std::vector<int64_t> first_shape;
  int64_t first_step = 0;
  std::atomic<int64_t> calls{0};     // issued by the host; replays of a captured graph are not among them
  std::atomic<int64_t> uses{0};      // of a weight's faulted copy
  std::atomic<int64_t> captured{0};  // of these, calls that were recorded into a CUDA graph and did not run then
  const Row* first = nullptr;        // of a second pass: the row of the first at the same site
  at::Tensor previous;               // stale: what the site gave at its last call, before the fault
  bool repeatable = false;           // and that was in this step: a resumed run has no other
  double strength = 0;               // at this step
  std::vector<double> strengths;     // in force while the ledger was filled
  std::mutex mutex;                  // one thread acts at a time: a CPU row's words are plain memory
};

class WeightCache;

class Plan : public std::enable_shared_from_this<Plan> {
 public:
  Plan(std::vector<Rule> rules, PlanSettings settings);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const std::vector<std::unique_ptr<PlanRule>>& rules() const { return rules_; }
  const PlanSettings& settings() const { return settings_; }

  bool armed() const { return armed_.load(std::memory_order_relaxed); }
  void set_armed(bool armed);
  void begin_step(int64_t step);  // call numbers start again, strengths follow their schedules
  int64_t step() const { return step_; }

  // The row of a site, made at its first call on a tensor like x. Look at `unreached`; `why_not`: what the caller knows
  // against it.
  Row& row(const PlanRule& rule, uint32_t target, std::string_view target_name, const Location& location,
           Surface surface, const at::Tensor& x, const std::string& why_not = "");
  // Lets the row's rule act on x, in place, below autograd. replacement: like x, for kinds that replace a computation.
  void act(Row& row, const at::Tensor& x, const at::Tensor& replacement = {});

  // A forward of the whole model began (the root scope); expected counts are per forward. Of actor_backward: a forward
  // whose backward is due.
  void count_forwards(Phase phase, ForwardKind kind, int64_t count) { forwards_[forward_index(phase, kind)] += count; }
  int64_t forwards(Phase phase, ForwardKind kind) const { return forwards_[forward_index(phase, kind)]; }

  RoutedCalls& routed() { return routed_; }
  const RoutedCalls& routed() const { return routed_; }
  // Counts depend on routing: clients tell it though it costs a synchronisation.
  bool counts_routing() const { return counts_routing_; }
  void set_counts_routing(bool counts) { counts_routing_ = counts; }

  struct Evidence {
    const Row* row;
    LedgerNumbers numbers;
  };
  std::vector<Evidence> read_evidence();  // synchronises once a device
  // The same as (kLedgerWords) int64 on the CPU, which may be added and subtracted: Note [Exact sums].
  std::vector<std::pair<const Row*, at::Tensor>> read_ledgers();

  WeightCache& weights() { return *weights_; }
  const std::vector<std::unique_ptr<Row>>& all_rows() const { return rows_; }

 private:
  struct Table;
  Table& table_of(const at::Device& device);
  double strength_of(const PlanRule& rule, PlaceId place) const;
  Control start_step(Row& row) const;  // the row's control at the start of the step; its strength
  void write_controls(Table& table);
  void make_row(Row& row, const at::Tensor& x);
  void add_rule(Rule rule, const PlanRule* repeats);

  std::vector<std::unique_ptr<PlanRule>> rules_;
  PlanSettings settings_;
  uint64_t generation_;
  std::atomic<bool> armed_{false};
  int64_t step_ = 0;
  static std::size_t forward_index(Phase phase, ForwardKind kind) {
    return static_cast<std::size_t>(phase) * kForwardKinds + static_cast<std::size_t>(kind);
  }
  std::array<std::atomic<int64_t>, kPhases * kForwardKinds> forwards_{};
  RoutedCalls routed_;
  std::atomic<bool> counts_routing_{false};
  std::shared_mutex mutex_;
  std::unordered_map<uint64_t, Row*> by_key_;
  std::vector<std::unique_ptr<Row>> rows_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::unique_ptr<WeightCache> weights_;
};

// The plan that acts in this process, or null.
std::shared_ptr<Plan> active_plan();

bool can_fault(const at::Tensor& tensor);  // a dense tensor of a dtype that faults act on

}  // namespace faultline
