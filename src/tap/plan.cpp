#include "tap/plan.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "numeric/apply.h"
#include "numeric/resolution.h"
#include "numeric/tensor_memory.h"
#include "site/entered.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"
#include "tap/plan_rule.h"
#include "tap/substitution.h"

namespace faultline::tap {
namespace {

constexpr std::size_t kSlots = 256;  // rows a block of device memory holds
constexpr std::size_t kMaxRules = 64;
constexpr int kPartBits = 16;  // calls of a site in one part of a step

// 0 on a CPU; 11 bits.
uint64_t device_bits(const at::Device& device) {
  if (device.is_cpu()) return 0;
  FL_ASSERT(device.index() < (1 << 6) - 1 && static_cast<int>(device.type()) < 1 << 5);
  return static_cast<uint64_t>(device.type()) << 6 | static_cast<uint64_t>(device.index() + 1);
}

// A site is told apart by its tensors' dtype and device as well: unattributed calls of different kinds share a place.
uint64_t row_key(uint32_t rule, uint32_t target, const site::Location& location, site::Surface surface,
                 const at::Tensor& x) {
  FL_ASSERT(location.place < 1u << 24 && target < 1u << 14);
  const auto dtype = can_fault(x) ? static_cast<uint64_t>(numeric::dtype_of(x)) + 1 : 0;
  return static_cast<uint64_t>(rule) | static_cast<uint64_t>(target) << 6 |
         static_cast<uint64_t>(location.place) << 20 | static_cast<uint64_t>(location.phase) << 44 |
         static_cast<uint64_t>(surface) << 47 | dtype << 50 | device_bits(x.device()) << 53;
}

// What dead zones with a second pass measured in their first one, on this thread.
std::map<const Row*, at::Tensor>& references() {
  thread_local std::map<const Row*, at::Tensor> all;
  return all;
}

bool holds_now(const PlanRule& entry, const at::Tensor& x) {
  if (!entry.asleep) return true;
  const site::Condition& when = *entry.rule.when;
  if (when.decode_step && numeric::is_capturing(x))
    throw UsageError(fmt::format(
        "rule '{}': when.decode_step means some decodings, and a captured CUDA graph computes each of them alike; "
        "generate without graphs, or leave decode_step out",
        entry.rule.name));
  const numeric::TensorShape shape = numeric::shape_of(x);
  return site::holds(when, shape.columns == 0 ? 0 : shape.elements / shape.columns, shape.columns);
}

void note_strength(Row& row) {
  if (row.strengths.empty() || row.strengths.back() != row.strength) row.strengths.push_back(row.strength);
}

std::atomic<uint64_t> generations{0};
std::atomic<uint32_t> process_part{0};

}  // namespace

bool grows_with_strength(numeric::FaultKind kind) {
  switch (kind) {
    case numeric::FaultKind::kRelativeGaussian:
    case numeric::FaultKind::kAbsoluteGaussian:
    case numeric::FaultKind::kScaledGaussian:
    case numeric::FaultKind::kSystematicBias:
    case numeric::FaultKind::kGain:
    case numeric::FaultKind::kOffset:
    case numeric::FaultKind::kDeadzone: return true;
    default: return false;
  }
}

bool can_fault(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_meta()) return false;
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || (type == at::kDouble && tensor.is_cpu());
}

// Control and ledger rows on one device, in blocks that never move: captured graphs hold their addresses.
struct Plan::Table {
  at::Device device = at::kCPU;
  struct Block {
    at::Tensor controls;  // (kSlots, 10) int32
    at::Tensor ledgers;   // (kSlots, kLedgerWords) int64
  };
  std::vector<Block> blocks;
  std::vector<Row*> rows;
};

Plan::Plan(std::vector<numeric::Rule> rules, recipe::PlanSettings settings, bool may_be_empty)
    : settings_(std::move(settings)),
      operators_(read_operators(settings_.operators)),
      generation_(++generations),
      weights_(std::make_unique<WeightCache>()) {
  use_operators(operators_);
  if (rules.empty() && !may_be_empty) throw UsageError("a plan needs at least one rule under faults:");
  for (numeric::Rule& rule : rules) add_rule(std::move(rule), nullptr);
  const std::size_t written = rules_.size();
  for (std::size_t i = 0; i < written; ++i) {
    const PlanRule& first = *rules_[i];
    if (!first.rule.reevaluate) continue;
    if (i + 1 == written)
      throw UsageError(fmt::format("rule '{}': reevaluate passes again after the rules behind it, and there is none",
                                   first.rule.name));
    numeric::Rule again = first.rule;
    again.name += " (again)";
    again.reevaluate = false;
    add_rule(std::move(again), &first);
  }
  if (rules_.size() > kMaxRules)
    throw UsageError(fmt::format("a plan has at most {} rules; got {}", kMaxRules, rules_.size()));
}

void Plan::add_rule(numeric::Rule rule, const PlanRule* repeats) {
  auto entry = std::make_unique<PlanRule>();
  entry->phases = read_phases(rule.phases, settings_.phases);
  entry->index = static_cast<uint32_t>(rules_.size());
  entry->rule = std::move(rule);
  entry->repeats = repeats;
  if (entry->rule.when) {
    entry->asleep = entry->rule;
    entry->asleep->lifetime = numeric::kAsleep;
  }
  check_plan_rule(*entry);
  rules_.push_back(std::move(entry));
}

// Captured graphs go on reading and writing the rows of their plan: that memory is never freed, and so never another's.
Plan::~Plan() {
  static auto& captured = *new std::vector<std::unique_ptr<Table>>;
  for (auto& table : tables_) {
    const auto& rows = table->rows;
    if (std::any_of(rows.begin(), rows.end(), [](const Row* row) { return row->captured > 0; }))
      captured.push_back(std::move(table));
  }
}

double Plan::strength_of(const PlanRule& rule, site::PlaceId place) const {
  if (!rule.rule.schedule) return rule.rule.what.strength;
  const int64_t layer = site::place_of(place).layer;
  const ScheduleSpec& schedule = *rule.rule.schedule;
  const int64_t count = std::max<int64_t>({1, settings_.layer_count, layer + 1});
  return strength_at(schedule, step_, settings_.total_steps) *
         layer_multiplier(schedule, layer < 0 ? kNoLayer : layer, count, step_, settings_.total_steps);
}

numeric::Control Plan::start_step(Row& row) const {
  row.strength = strength_of(*row.rule, row.place);
  // A captured graph will replay with it, unseen by the host.
  if (row.captured > 0) note_strength(row);
  numeric::Control control;
  control.armed = acts_now(row) ? 1 : 0;
  control.strength =
      static_cast<float>(row.strength * (loud_ && grows_with_strength(row.rule->rule.what.kind) ? 0x1p20 : 1));
  control.step = static_cast<uint32_t>(step_);
  control.call = process_part.load(std::memory_order_relaxed) << kPartBits;
  control.phase = static_cast<uint32_t>(row.phase);
  return control;
}

void Plan::write_controls(Table& table) {
  std::vector<numeric::Control> controls;
  controls.reserve(table.rows.size());
  for (Row* row : table.rows) controls.push_back(start_step(*row));
  for (std::size_t b = 0; b < table.blocks.size(); ++b) {
    const std::size_t first = b * kSlots,
                      count = std::min(kSlots, table.rows.size() - std::min(first, table.rows.size()));
    if (count == 0) break;
    at::Tensor staged =
        at::zeros({static_cast<int64_t>(count), static_cast<int64_t>(sizeof(numeric::Control) / 4)}, at::kInt);
    std::memcpy(staged.mutable_data_ptr<int32_t>(), controls.data() + first, count * sizeof(numeric::Control));
    table.blocks[b].controls.narrow(0, 0, static_cast<int64_t>(count)).copy_(staged, /*non_blocking=*/true);
  }
}

void Plan::set_armed(bool armed) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  if (armed_ == armed) return;
  armed_ = armed;
  write_arming();
}

bool Plan::acts_now(const Row& row) const {
  return armed() && (!silenced() || site::is_of_parameters(row.rule->rule.where->surface));
}

// Only the flags: call numbers go on.
void Plan::write_arming() {
  const at::AutoDispatchBelowADInplaceOrView below;
  for (auto& table : tables_) {
    for (std::size_t b = 0; b < table->blocks.size(); ++b) {
      at::Tensor flags = at::zeros({kSlots}, at::kInt);
      auto* flag = flags.mutable_data_ptr<int32_t>();
      for (std::size_t slot = b * kSlots; slot < std::min(table->rows.size(), (b + 1) * kSlots); ++slot)
        flag[slot % kSlots] = acts_now(*table->rows[slot]) ? 1 : 0;
      table->blocks[b].controls.select(1, 0).copy_(flags, /*non_blocking=*/true);
    }
  }
}

void Plan::silence(const std::string& reason) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  silences_.push_back(reason);
  apart_.try_emplace(reason, 0);
  if (silenced_.exchange(true)) return;
  site::pause_counting_entries(true);
  write_arming();
}

void Plan::end_silence() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  if (silences_.empty()) throw UsageError("the plan is not silenced");
  silences_.pop_back();
  if (!silences_.empty()) return;
  silenced_ = false;
  rehearsal_.reset();
  if (armed()) site::pause_counting_entries(false);
  write_arming();
}

bool Plan::rehearse(std::optional<site::ForwardKind> kind) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  rehearsal_.reset();
  if (!kind) return false;
  if (silences_.empty()) throw UsageError("a forward is rehearsed while the plan is silenced");
  bool& done = rehearsals_[static_cast<std::size_t>(*kind)];
  if (done) return false;
  rehearsal_ = kind, rehearsal_depth_ = silences_.size();
  return done = true;
}

void Plan::count_call(Row& row, bool capturing) {
  if (capturing) row.captured.fetch_add(1, std::memory_order_relaxed);
  if (!acts_now(row)) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    if (silences_.empty()) return;
    apart_[silences_.back()] += 1;
    if (rehearsal_ && silences_.size() == rehearsal_depth_)
      row.rehearsed[static_cast<std::size_t>(*rehearsal_)].fetch_add(1, std::memory_order_relaxed);
  } else if (!capturing) {
    row.calls.fetch_add(1, std::memory_order_relaxed);
  }
}

void Plan::set_loud(bool loud) {
  loud_ = loud;
  begin_step(step_);
}

void Plan::forget_evidence() {
  {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    const at::AutoDispatchBelowADInplaceOrView below;
    for (auto& table : tables_) {
      for (auto& block : table->blocks) block.ledgers.zero_();
    }
    for (auto& row : rows_) {
      row->calls = row->uses = 0;
      row->strengths.clear();
    }
    site::begin_counting_entries();
    site::pause_counting_entries(silenced());
    for (auto& count : forwards_) count = 0;
  }
  begin_step(step_);
}

void Plan::begin_step(int64_t step) {
  if (step < 0 || step > 0xFFFFFFFFll)
    throw UsageError(fmt::format("step {} is out of range; steps count from 0", step));
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  step_ = step;
  for (auto& row : rows_) row->repeatable = false;
  const at::AutoDispatchBelowADInplaceOrView below;
  for (auto& table : tables_) write_controls(*table);
}

void begin_part(Plan& plan, int64_t part) {
  if (part < 0 || part >= int64_t{1} << (32 - kPartBits))
    throw UsageError(fmt::format("a step has at most {} parts; got number {}", 1 << (32 - kPartBits), part));
  process_part = static_cast<uint32_t>(part);
  plan.begin_step(plan.step());  // rewrites the control rows
}

Plan::Table& Plan::table_of(const at::Device& device) {
  for (auto& table : tables_) {
    if (table->device == device) return *table;
  }
  tables_.push_back(std::make_unique<Table>());
  tables_.back()->device = device;
  return *tables_.back();
}

Row& Plan::row(const PlanRule& rule, uint32_t target, std::string_view target_name, const site::Location& location,
               site::Surface surface, const at::Tensor& x, const std::string& why_not) {
  const uint64_t key = row_key(rule.index, target, location, surface, x);
  thread_local std::unordered_map<uint64_t, Row*> known;
  thread_local uint64_t known_generation = 0;
  if (known_generation != generation_) known.clear(), known_generation = generation_;
  if (const auto found = known.find(key); found != known.end()) return *found->second;
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  Row*& entry = by_key_[key];
  if (entry == nullptr) {
    auto made = std::make_unique<Row>();
    made->rule = &rule;
    made->target = std::string(target_name);
    made->place = location.place;
    made->phase = location.phase;
    made->unreached = !why_not.empty() ? why_not : why_unreached(rule, location, surface);
    if (made->unreached.empty() && !can_fault(x))
      made->unreached = fmt::format("cannot fault {} {} tensors on {}", c10::str(x.layout()),
                                    c10::toString(x.scalar_type()), x.device().str());
    if (rule.repeats != nullptr) made->first = by_key_.at(row_key(rule.repeats->index, target, location, surface, x));
    entry = made.get();
    rows_.push_back(std::move(made));
  }
  known[key] = entry;
  return *entry;
}

void Plan::act(Row& row, const at::Tensor& x, const at::Tensor& replacement) {
  const numeric::Rule& rule = row.rule->rule;
  const at::AutoDispatchBelowADInplaceOrView below;
  const std::lock_guard<std::mutex> row_lock(row.mutex);
  if (!row.ledger.defined()) {
    numeric::check_tensor(x, "an operator's result");
    numeric::check_visible(rule, numeric::dtype_of(x));
    make_row(row, x);
  }
  const numeric::Rule& now = holds_now(*row.rule, x) ? rule : *row.rule->asleep;
  numeric::CallTensors tensors{row.control, row.ledger, {}, {}};
  if (rule.reevaluate) tensors.reference = &(references()[&row] = at::Tensor());
  if (row.first != nullptr) tensors.reference = &references()[row.first];
  if (rule.what.kind == numeric::FaultKind::kStale) {
    const bool fits = row.previous.defined() && row.previous.sizes() == x.sizes();  // captured graphs keep its address
    const at::Tensor now = x.contiguous();
    tensors.replacement = fits && row.repeatable ? row.previous.clone() : now.clone();
    row.previous = fits ? row.previous.copy_(now) : now.clone();
    row.repeatable = true;
  } else if (replacement.defined()) {
    tensors.replacement = replacement.contiguous();
  }
  {
    const TapsSuspended suspended;  // the portable arithmetic is made of operators, which no rule means
    numeric::apply_(x, now, row.keys, numeric::Control{}, tensors);
  }
  if (row.first != nullptr) references().erase(row.first);
  count_call(row, numeric::is_capturing(x));
  if (row.captured > 0 || acts_now(row)) note_strength(row);
}

void Plan::make_row(Row& row, const at::Tensor& x) {
  const numeric::Rule& rule = row.rule->rule;
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  if (numeric::is_capturing(x))
    throw UsageError(fmt::format(
        "rule '{}' met a new site, {} of {}, while a CUDA graph was being captured; run the step once "
        "before capturing it (as torch's warm-up does)",
        rule.name, row.target, row.place == site::kNowhere ? "an unknown place" : site::place_of(row.place).path));
  Table& table = table_of(x.device());
  if (table.rows.size() == table.blocks.size() * kSlots) {
    const auto options = at::TensorOptions().device(x.device());
    table.blocks.push_back({numeric::lasting_zeros({kSlots, sizeof(numeric::Control) / 4}, options.dtype(at::kInt)),
                            numeric::lasting_zeros({kSlots, numeric::kLedgerWords}, options.dtype(at::kLong))});
  }
  const std::size_t slot = table.rows.size();
  table.rows.push_back(&row);
  const auto& block = table.blocks[slot / kSlots];
  row.control = block.controls.select(0, static_cast<int64_t>(slot % kSlots));
  // The site's name is where it is and what family computes there: the same unit in rollout, training and compiled
  // code, whichever overload runs.
  const std::string_view family = family_of(row.target);
  const std::string& path = site::place_of(row.place).path;
  row.keys = numeric::make_keys(
      {settings_.seed, fmt::format("{}:{}", path, family.empty() ? std::string_view(row.target) : family), 0},
      row.rule->repeats != nullptr ? row.rule->repeats->rule.name : rule.name);
  row.dtype = numeric::dtype_of(x);
  row.first_shape = x.sizes().vec();
  row.first_step = step_;
  const numeric::Control control = start_step(row);
  at::Tensor staged = at::zeros({static_cast<int64_t>(sizeof(numeric::Control) / 4)}, at::kInt);
  std::memcpy(staged.mutable_data_ptr<int32_t>(), &control, sizeof control);
  row.control.copy_(staged, /*non_blocking=*/true);
  row.ledger = block.ledgers.select(0, static_cast<int64_t>(slot % kSlots));
}

std::vector<std::pair<const Row*, at::Tensor>> Plan::read_ledgers() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<std::pair<const Row*, at::Tensor>> all;
  for (auto& table : tables_) {
    std::vector<at::Tensor> ledgers;
    for (auto& block : table->blocks) ledgers.push_back(block.ledgers.cpu());
    for (std::size_t slot = 0; slot < table->rows.size(); ++slot)
      all.emplace_back(table->rows[slot], ledgers[slot / kSlots].select(0, static_cast<int64_t>(slot % kSlots)));
  }
  return all;
}

std::vector<Plan::Evidence> Plan::read_evidence() {
  std::vector<Evidence> evidence;
  for (const auto& [row, words] : read_ledgers()) {
    const at::Tensor columns = numeric::ledger_columns(words);
    evidence.push_back({row, numeric::read_ledger(columns.const_data_ptr<double>())});
  }
  return evidence;
}

}  // namespace faultline::tap
