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
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "numeric/evidence.h"
#include "numeric/lower.h"
#include "recipe/recipe.h"
#include "site/boundary.h"
#include "tap/operator_table.h"
#include "tap/plan_rule.h"
#include "tap/routed.h"

namespace faultline::tap {

// What a row has been asked to do, host side. Rows that no rule may act on keep the reason, for the coverage report.
struct Row {
  const PlanRule* rule = nullptr;
  std::string target;  // operator base name, or "boundary"
  site::PlaceId place = site::kNowhere;
  site::Phase phase = site::Phase::kRollout;
  std::string unreached;  // why the rule does not act here, for good; "": it does
  numeric::Keys keys;
  at::Tensor control;
  at::Tensor ledger;
  numeric::Dtype dtype = numeric::Dtype::kFloat32;
  std::vector<int64_t> first_shape;
  int64_t first_step = 0;
  std::atomic<int64_t> calls{0};  // that the host issued and that ran; replays of a captured graph are not among them
  std::atomic<int64_t> uses{0};   // of a weight's faulted copy
  std::atomic<int64_t> captured{0};  // calls that were recorded into a CUDA graph; each replay runs them
  std::array<std::atomic<int64_t>, site::kForwardKinds>
      rehearsed{};                // calls in one forward of each kind: Plan::rehearse
  const Row* first = nullptr;     // of a second pass: the row of the first at the same site
  at::Tensor previous;            // stale: what the site gave at its last call, before the fault
  bool repeatable = false;        // and that was in this step: a resumed run has no other
  double strength = 0;            // at this step
  std::vector<double> strengths;  // in force while the ledger was filled
  std::mutex mutex;               // one thread acts at a time: a CPU row's words are plain memory
};

class WeightCache;

class Plan : public std::enable_shared_from_this<Plan> {
 public:
  // may_be_empty: something else proves that the recipe acted here, as noise on norms does (aqn).
  Plan(std::vector<numeric::Rule> rules, recipe::PlanSettings settings, bool may_be_empty = false);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const std::vector<std::unique_ptr<PlanRule>>& rules() const { return rules_; }
  const recipe::PlanSettings& settings() const { return settings_; }
  const OperatorNames& operators() const { return operators_; }  // that the recipe adds to the built-in table

  uint64_t generation() const { return generation_; }  // of this plan alone, in this process
  bool armed() const { return armed_.load(std::memory_order_relaxed); }
  void set_armed(bool armed);
  void begin_step(int64_t step);  // call numbers start again, strengths follow their schedules
  int64_t step() const { return step_; }

  // Note [Silence]
  // What an engine runs for itself — profiling, warm-up, an autotuner's trials — is nobody's result. Silenced, rules
  // launch their kernels as always, so that a graph captured meanwhile has them in it, but the control rows let the
  // kernels do nothing and count nothing; the host counts the calls apart, by reason. Lifting the silence is one write
  // to the table: whatever was captured acts from then on. Rules on weights act all the while: their copies outlast it.
  void silence(const std::string& reason);  // "warm-up"; nests
  void end_silence();
  bool silenced() const { return silenced_.load(std::memory_order_relaxed); }
  const std::map<std::string, int64_t>& calls_apart() const { return apart_; }
  // In silence, what runs until the next call is one forward of this kind: each site's calls in it are its calls a
  // forward. Nothing: it has ended. A kind is rehearsed once; false: it has been.
  bool rehearse(std::optional<site::ForwardKind> kind);
  // Loud, kinds with a strength have a million times theirs: for a canary, whose fault no rounding may swallow.
  void set_loud(bool loud);
  // Ledger, calls and forwards begin again at zero: what came before (a canary) proves nothing about what follows.
  void forget_evidence();

  // The row of a site, made at its first call on a tensor like x. Look at `unreached`; `why_not`: what the caller knows
  // against it.
  Row& row(const PlanRule& rule, uint32_t target, std::string_view target_name, const site::Location& location,
           site::Surface surface, const at::Tensor& x, const std::string& why_not = "");
  // Lets the row's rule act on x, in place, below autograd. replacement: like x, for kinds that replace a computation.
  void act(Row& row, const at::Tensor& x, const at::Tensor& replacement = {});

  // A forward of the whole model began (the root scope); expected counts are per forward. Of actor_backward: a forward
  // whose backward is due.
  void count_forwards(site::Phase phase, site::ForwardKind kind, int64_t count) {
    forwards_[forward_index(phase, kind)] += count;
  }
  int64_t forwards(site::Phase phase, site::ForwardKind kind) const { return forwards_[forward_index(phase, kind)]; }

  RoutedCalls& routed() { return routed_; }
  const RoutedCalls& routed() const { return routed_; }
  // Counts depend on routing: clients tell it though it costs a synchronisation.
  bool counts_routing() const { return counts_routing_; }
  void set_counts_routing(bool counts) { counts_routing_ = counts; }

  struct Evidence {
    const Row* row;
    numeric::LedgerNumbers numbers;
  };
  std::vector<Evidence> read_evidence();  // synchronises once a device
  // The same as (kLedgerWords) int64 on the CPU, which may be added and subtracted: Note [Exact sums].
  std::vector<std::pair<const Row*, at::Tensor>> read_ledgers();

  WeightCache& weights() { return *weights_; }
  const std::vector<std::unique_ptr<Row>>& all_rows() const { return rows_; }

 private:
  struct Table;
  Table& table_of(const at::Device& device);
  bool acts_now(const Row& row) const;  // armed, and neither silenced nor a rule on weights
  void write_arming();                  // the flag of every control row
  double strength_of(const PlanRule& rule, site::PlaceId place) const;
  numeric::Control start_step(Row& row) const;  // the row's control at the start of the step; its strength
  void write_controls(Table& table);
  void count_call(Row& row, bool capturing);
  void make_row(Row& row, const at::Tensor& x);
  void add_rule(numeric::Rule rule, const PlanRule* repeats);

  std::vector<std::unique_ptr<PlanRule>> rules_;
  recipe::PlanSettings settings_;
  OperatorNames operators_;
  uint64_t generation_;
  std::atomic<bool> armed_{false};
  std::atomic<bool> silenced_{false};
  bool loud_ = false;
  std::vector<std::string> silences_;  // reasons, outermost first
  std::map<std::string, int64_t> apart_;
  std::array<bool, site::kForwardKinds> rehearsals_{};
  std::optional<site::ForwardKind> rehearsal_;
  std::size_t rehearsal_depth_ =
      0;  // silences around it: what is silenced inside (an autotuner's trial) is no part of it
  int64_t step_ = 0;
  static std::size_t forward_index(site::Phase phase, site::ForwardKind kind) {
    return static_cast<std::size_t>(phase) * site::kForwardKinds + static_cast<std::size_t>(kind);
  }
  std::array<std::atomic<int64_t>, site::kPhases * site::kForwardKinds> forwards_{};
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

bool grows_with_strength(numeric::FaultKind kind);  // a larger strength changes more, without a limit
bool can_fault(const at::Tensor& tensor);           // a dense tensor of a dtype that faults act on

// Parts of a step: what several processes may share (Note [Shards] in train/replicas.h). The calls of a part are
// numbered from part * 65536 on, so its faults draw the same numbers in whichever order and process the parts are
// computed. Like the phase, the part is the process's: one plan acts in it.

// What follows is this part of the plan's step. 0: the step as a whole, which is what it is otherwise.
void begin_part(Plan& plan, int64_t part);

}  // namespace faultline::tap
