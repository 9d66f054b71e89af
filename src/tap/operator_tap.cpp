#include "tap/operator_tap.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <pthread.h>
#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "site/backend.h"
#include "site/entered.h"
#include "site/torch_support.h"
#include "tap/boundary.h"
#include "tap/launches.h"
#include "tap/operators.h"
#include "tap/substitution.h"

namespace faultline::tap {
namespace {

// What is shared between plans: the wrapped kernels and the plan that acts. Never destroyed, because wrapped kernels
// may run until the process ends.
struct Tap {
  std::mutex mutex;  // of arming
  std::atomic<std::shared_ptr<Plan>> plan;
  std::atomic<int64_t> running{0};         // wrapped calls in flight, all threads
  uint64_t counted = 0;                    // generation of the plan whose entries of places are counted
  std::atomic<bool> follows_casts{false};  // the plan has rules to which a parameter's cast copy is that parameter
  using Target = std::pair<std::string, c10::DispatchKey>;
  std::map<Target, uint32_t> numbers;  // of all that were ever wrapped: rows of plans keep them
  std::set<Target> wrapped;
  const Family* table = nullptr;        // the families that wrappers were made by
  std::vector<c10::DispatchKey> armed;  // the backends that the plan was armed on
  std::vector<std::unique_ptr<torch::Library>> registrations;
  std::vector<std::string> bases;  // base name of each numbered operator
  // For each numbered operator the rules of the active plan that name it, one bit a rule; entries never move.
  std::deque<std::atomic<uint64_t>> rules_of;
};
Tap& tap() {
  static auto* the_tap = new Tap;
  return *the_tap;
}

bool lost_by_fork = false;

constexpr std::string_view kCast = "aten::_to_copy";

thread_local uint64_t acting = 0;  // rules inside one of whose calls this thread is: only the outermost call acts

class RunningGuard {
 public:
  RunningGuard() { tap().running.fetch_add(1, std::memory_order_relaxed); }
  ~RunningGuard() { tap().running.fetch_sub(1, std::memory_order_relaxed); }
};
class ActingGuard {
 public:
  explicit ActingGuard(uint64_t rules) : before_(acting) { acting |= rules; }
  ~ActingGuard() { acting = before_; }

 private:
  uint64_t before_;
};

bool all_leave_out(const Plan& plan, uint64_t named, const site::Location& location) {
  const site::Place& place = site::place_of(location.place);
  return std::ranges::all_of(
      plan.rules(), [&](const auto& rule) { return (named >> rule->index & 1) == 0 || leaves_out(*rule, place); });
}

struct TapKernel final : c10::OperatorKernel {
  TapKernel(c10::SafeKernelFunction kernel, uint32_t number, const c10::FunctionSchema& schema, bool autograd)
      : original(std::move(kernel)),
        target(number),
        results(results_of(schema)),
        weight_use(weight_use_of(base_name(schema.name()))),
        above_autograd(autograd),
        casts(schema.name() == kCast) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const RunningGuard running;
    if (!casts || !tap().follows_casts.load(std::memory_order_relaxed)) {
      call(op, keys, stack);
      return;
    }
    const at::Tensor from = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
    call(op, keys, stack);
    note_cast(from, stack->back().toTensor());
  }

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
    const uint64_t named = tap().rules_of[target].load(std::memory_order_acquire) & ~acting;
    const std::shared_ptr<Plan> plan = named != 0 ? tap().plan.load() : nullptr;
    if (!plan || !plan->armed()) {
      original.callBoxed(op, keys, stack);
      return;
    }
    const std::size_t arguments = op.schema().arguments().size();
    std::vector<at::Tensor> given, written;
    for (std::size_t i = 0; i < arguments; ++i) collect_tensors(torch::jit::peek(*stack, i, arguments), given);
    for (const std::size_t i : results.written) collect_tensors(torch::jit::peek(*stack, i, arguments), written);
    const site::Location location = locate(weight_use, given);
    // The operator's kernels and its faults', in one census of launches.
    const LaunchScope launches(recording_launch_scopes() && all_leave_out(*plan, named, location) ? kLeftOutRow
                                                                                                  : target);
    site::translated(
        [&] { substitute(*plan, named, target, tap().bases[target], op.schema(), location, stack, above_autograd); });
    if (above_autograd) {
      const InputsDone done;
      original.callBoxed(op, keys, stack);
      return;
    }
    std::vector<Replacement> replacements;
    site::translated([&] { replacements = compute(*plan, named, torch::jit::last(*stack, arguments)); });
    {
      const ActingGuard guard(named);
      original.callBoxed(op, keys, stack);
    }
    if (written.empty()) {
      for (const std::size_t i : results.returned)
        collect_tensors(torch::jit::peek(*stack, i, op.schema().returns().size()), written);
      std::erase_if(written, [&](const at::Tensor& result) { return shares_storage(result, given); });  // views
    }
    site::translated([&] { act(*plan, named, location, written, replacements); });
  }

  // What rules that replace a computation will write, by rule.
  struct Replacement {
    const PlanRule* rule;
    at::Tensor values;
    std::string why;
  };
  std::vector<Replacement> compute(const Plan& plan, uint64_t named, c10::ArrayRef<c10::IValue> arguments) const {
    std::vector<Replacement> all;
    for (const auto& rule : plan.rules()) {
      const numeric::FaultKind kind = rule->rule.what.kind;
      if ((named >> rule->index & 1) == 0 || !numeric::is_replacement(kind) || kind == numeric::FaultKind::kStale)
        continue;
      const ActingGuard guard(~uint64_t{0});
      const at::AutoDispatchBelowADInplaceOrView below;
      Replacement replacement{rule.get(), {}, ""};
      replacement.values = compute_replacement(rule->rule, tap().bases[target], arguments, replacement.why);
      all.push_back(std::move(replacement));
    }
    return all;
  }

  void act(Plan& plan, uint64_t named, const site::Location& location, const std::vector<at::Tensor>& tensors,
           const std::vector<Replacement>& replacements) const {
    for (const at::Tensor& tensor : tensors) {
      for (const auto& rule : plan.rules()) {
        if ((named >> rule->index & 1) == 0 || rule->rule.where->surface != site::Surface::kOutput) continue;
        const auto replacement = std::find_if(replacements.begin(), replacements.end(),
                                              [&](const Replacement& each) { return each.rule == rule.get(); });
        const bool replaces = replacement != replacements.end();
        Row& row = plan.row(*rule, target, tap().bases[target], location, site::Surface::kOutput, tensor,
                            replaces ? replacement->why : "");
        if (row.unreached.empty() && (!replaces || replacement->values.defined())) {
          const ActingGuard guard(~uint64_t{0});
          plan.act(row, tensor, replaces ? replacement->values : at::Tensor());
          if (location.place == site::kNowhere && location.phase != site::Phase::kActorBackward &&
              !site::is_inside_scope())
            site::note_outside(rule->index, location.phase);
        } else {
          row.calls.fetch_add(1, std::memory_order_relaxed);
        }
      }
    }
  }

  const c10::SafeKernelFunction original;
  const uint32_t target;
  const Results results;
  const WeightUse weight_use;
  const bool above_autograd;  // wraps the Autograd key: replaces inputs and nothing else
  const bool casts;           // its result may be a parameter in another dtype
};

std::vector<c10::DispatchKey> backends() {
  // Sparse kernels are wrapped, too: their dense results are faulted, and a sparse one is refused by name.
  std::vector<c10::DispatchKey> keys = {c10::DispatchKey::CPU, c10::DispatchKey::MkldnnCPU, c10::DispatchKey::SparseCPU,
                                        c10::DispatchKey::SparseCsrCPU};
  for (const c10::DispatchKey key : site::accelerator_keys()) keys.push_back(key);
  return keys;
}

std::vector<Kernel> kernels_of(const PlanRule& rule) {
  const site::Selector& where = *rule.rule.where;
  if (where.operator_pattern.empty()) return {};
  std::vector<Kernel> kernels = resolve_operators(where.operator_pattern, where.except, backends());
  if (where.surface != site::Surface::kInput) return kernels;
  std::vector<Kernel> both;
  for (const Kernel& kernel : kernels) {
    both.push_back(kernel);
    if (site::is_dense_key(kernel.key)) both.push_back({kernel.op, site::autograd_key(kernel.key)});
  }
  return both;
}

uint32_t wrap(const Kernel& wish) {
  Tap& the_tap = tap();
  const std::string name = full_name(wish.op.operator_name());
  const auto [known, is_new] = the_tap.numbers.try_emplace({name, wish.key}, the_tap.bases.size());
  const uint32_t number = known->second;
  if (is_new) {
    the_tap.bases.emplace_back(base_name(name));
    the_tap.rules_of.emplace_back(0);
  }
  if (!the_tap.wrapped.insert(known->first).second) return number;
  const std::size_t colons = name.find("::");
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, name.substr(0, colons), wish.key, __FILE__, __LINE__);
  library->impl(name.substr(colons + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<TapKernel>(
                                                     wish.op.getComputedKernelForDispatchKey(wish.key), number,
                                                     wish.op.schema(), site::is_autograd_key(wish.key))));
  the_tap.registrations.push_back(std::move(library));
  return number;
}

void restore_kernels() {
  Tap& the_tap = tap();
  while (!the_tap.registrations.empty()) the_tap.registrations.pop_back();  // the last wrapped first
  the_tap.wrapped.clear();
  for (auto& rules : the_tap.rules_of) rules.store(0);
}

}  // namespace

TapsSuspended::TapsSuspended() : before_(acting) { acting = ~uint64_t{0}; }
TapsSuspended::~TapsSuspended() { acting = before_; }

std::shared_ptr<Plan> active_plan() { return tap().plan.load(); }

void arm(std::shared_ptr<Plan> plan) {
  static std::once_flag fork_handler;
  std::call_once(fork_handler, [] { pthread_atfork(nullptr, nullptr, forget_plan_after_fork); });
  Tap& the_tap = tap();
  const std::lock_guard<std::mutex> lock(the_tap.mutex);
  if (the_tap.plan.load() == plan) throw UsageError("this plan is armed already; disarm it first");
  if (the_tap.plan.load() != nullptr)
    throw UsageError("another plan is armed in this process; disarm it first, or put both rules into one recipe");
  use_operators(plan->operators());
  const bool other_table = the_tap.table != families().data() && !the_tap.wrapped.empty();
  // Which kernels the rules want, and which casts have to be followed to the weights behind them.
  std::vector<std::pair<uint32_t, Kernel>> wishes;
  bool new_kernels = false;
  for (const auto& rule : plan->rules()) {
    for (const Kernel& wish : kernels_of(*rule)) {
      wishes.emplace_back(rule->index, wish);
      new_kernels |= !the_tap.wrapped.contains({full_name(wish.op.operator_name()), wish.key});
    }
  }
  const bool follows_casts = std::any_of(plan->rules().begin(), plan->rules().end(), [](const auto& rule) {
    const site::Selector& where = *rule->rule.where;
    return !where.operator_pattern.empty() &&
           (site::is_of_parameters(where.surface) || where.surface == site::Surface::kInput);
  });
  const std::vector<Kernel> casts =
      follows_casts ? resolve_operators(std::string(kCast), {}, backends()) : std::vector<Kernel>{};
  for (const Kernel& cast : casts)
    new_kernels |= !the_tap.wrapped.contains({full_name(cast.op.operator_name()), cast.key});
  if ((new_kernels || other_table) && the_tap.running.load() > 0)
    throw UsageError("operators are running on other threads; arm a plan that wraps new operators before they start");
  // Wrap what is not wrapped yet, then tell each wrapper its rules.
  std::map<uint32_t, uint64_t> rules_of;
  if (other_table) restore_kernels();  // wrappers know what their operator's family is
  the_tap.table = families().data();
  the_tap.armed = site::accelerator_keys();
  {
    const site::SilentWarnings silent;
    for (const auto& [rule, wish] : wishes) rules_of[wrap(wish)] |= uint64_t{1} << rule;
    for (const Kernel& cast : casts) wrap(cast);
  }
  for (std::size_t number = 0; number < the_tap.rules_of.size(); ++number) {
    const auto found = rules_of.find(static_cast<uint32_t>(number));
    the_tap.rules_of[number].store(found == rules_of.end() ? 0 : found->second, std::memory_order_release);
  }
  // From here on the plan is armed.
  lost_by_fork = false;
  if (the_tap.counted != plan->generation()) site::begin_counting_entries();
  the_tap.counted = plan->generation();
  site::pause_counting_entries(plan->silenced());
  if (follows_casts) forget_casts();
  the_tap.follows_casts = follows_casts;
  plan->set_armed(true);
  the_tap.plan.store(std::move(plan));
  site::set_site_listener(&kPlanListener);
}

void disarm() {
  Tap& the_tap = tap();
  const std::lock_guard<std::mutex> lock(the_tap.mutex);
  const std::shared_ptr<Plan> plan = the_tap.plan.load();
  if (!plan) return;
  site::set_site_listener(nullptr);
  site::pause_counting_entries(true);
  the_tap.follows_casts = false;
  plan->set_armed(false);
  for (auto& rules : the_tap.rules_of) rules.store(0, std::memory_order_release);
  the_tap.plan.store(nullptr);
}

void unwrap_all() {
  Tap& the_tap = tap();
  const std::lock_guard<std::mutex> lock(the_tap.mutex);
  if (the_tap.plan.load() != nullptr) throw UsageError("a plan is armed; disarm it before the kernels are restored");
  if (the_tap.running.load() > 0)
    throw UsageError("operators are running on other threads; kernels are restored when they have ended");
  restore_kernels();
}

std::vector<WrappedOperator> wrapped_operators() {
  Tap& the_tap = tap();
  const std::lock_guard<std::mutex> lock(the_tap.mutex);
  std::vector<WrappedOperator> all;
  for (const auto& [name, key] : the_tap.wrapped) all.push_back({name, site::backend_title(key)});
  return all;
}

std::vector<c10::DispatchKey> backends_since_arming() {
  Tap& the_tap = tap();
  const std::lock_guard<std::mutex> lock(the_tap.mutex);
  if (the_tap.plan.load() == nullptr) return {};
  std::vector<c10::DispatchKey> keys = site::accelerator_keys();
  std::erase_if(keys, [&](c10::DispatchKey key) {
    return std::find(the_tap.armed.begin(), the_tap.armed.end(), key) != the_tap.armed.end();
  });
  return keys;
}

std::vector<WrappedOperator> operators_since_arming() {
  Tap& the_tap = tap();
  const std::lock_guard<std::mutex> lock(the_tap.mutex);
  const std::shared_ptr<Plan> plan = the_tap.plan.load();
  const auto is_other = [](c10::DispatchKey key) { return key != c10::DispatchKey::CUDA; };
  if (!plan || std::none_of(the_tap.armed.begin(), the_tap.armed.end(), is_other)) return {};
  std::set<Tap::Target> late;
  for (const auto& rule : plan->rules()) {
    for (const Kernel& kernel : kernels_of(*rule)) {
      const Tap::Target target{full_name(kernel.op.operator_name()), kernel.key};
      const bool was_there = std::find(the_tap.armed.begin(), the_tap.armed.end(), kernel.key) != the_tap.armed.end();
      if (was_there && is_other(kernel.key) && !the_tap.wrapped.contains(target)) late.insert(target);
    }
  }
  std::vector<WrappedOperator> all;
  for (const auto& [name, key] : late) all.push_back({name, site::backend_title(key)});
  return all;
}

std::vector<std::string> operators_of(const PlanRule& rule) {
  std::set<std::string> names;
  for (const Kernel& wish : kernels_of(rule)) names.insert(full_name(wish.op.operator_name()));
  return {names.begin(), names.end()};
}

void forget_plan_after_fork() {
  Tap& the_tap = tap();
  if (const auto plan = the_tap.plan.load()) {
    site::set_site_listener(nullptr);
    site::pause_counting_entries(true);
    the_tap.follows_casts = false;
    for (auto& rules : the_tap.rules_of) rules.store(0);
    the_tap.plan.store(nullptr);
    lost_by_fork = true;
  }
}

bool lost_plan_by_fork() { return lost_by_fork; }

}  // namespace faultline::tap
