#include "tap/substitution.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include "numeric/apply.h"
#include "numeric/tensor_memory.h"
#include "tap/boundary.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"

namespace faultline::tap {
namespace {

thread_local bool inputs_done = false;

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

// A bias is a parameter too, but not a weight: formats and W4A16 mean matrices. `weight` of one dimension is a norm's.
bool is_meant(site::Surface surface, const at::Tensor& parameter, const c10::Argument& argument) {
  if (surface == site::Surface::kWeight) return parameter.dim() >= 2;
  return parameter.dim() == 1 && argument.name() != "weight";
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace

InputsDone::InputsDone() : before_(inputs_done) { inputs_done = true; }
InputsDone::~InputsDone() { inputs_done = before_; }

at::Tensor WeightCache::faulted(Plan& plan, Row& row, const at::Tensor& parameter, const std::optional<CastCopy>& cast,
                                const at::Tensor& argument, Before& before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const at::AutoDispatchBelowADInplaceOrView below;
  // What the operator reads, whole: transposed or sliced views of it follow from its faulted copy.
  const at::Tensor whole =
      cast ? at::empty({0}, argument.options()).set_(argument.storage(), cast->offset, cast->sizes, cast->strides)
           : parameter;
  Entry& entry = entries_[{row.rule->index, before.rules, parameter.storage().unsafeGetStorageImpl(),
                           whole.scalar_type(), cast ? cast->from : 0, cast ? cast->sizes : std::vector<int64_t>{}}];
  const bool good = entry.copy.defined() && entry.version == version_of(parameter) && entry.epoch == epoch_;
  const bool capturing = numeric::is_capturing(argument);
  if (capturing && (!good || cast))
    throw UsageError(fmt::format(
        "rule '{}': the faulted copy of the weight of {} would be made inside a CUDA graph{}", row.rule->rule.name,
        site::place_of(row.place).path,
        cast ? ", from a cast of it that changes with each replay; switch autocast off or load the model in its dtype"
             : "; run the step once before capturing it"));
  if (!good) {
    // A copy that autograd may have saved is left to it. Without gradients it lasts, whatever pool is in use.
    entry.copy = at::GradMode::is_enabled() ? at::empty_strided(whole.sizes(), whole.strides(), whole.options())
                                            : numeric::lasting_like(whole);
    entry.master = parameter, entry.row = &row, entry.captured = false;
    entry.source = before.rules == 0 ? whole : before.copy;
    make(plan, entry);
  }
  entry.captured |= capturing;
  row.uses.fetch_add(1, std::memory_order_relaxed);
  before = {before.rules | uint64_t{1} << row.rule->index, entry.copy};
  return at::as_strided(entry.copy, argument.sizes(), argument.strides(),
                        argument.storage_offset() - whole.storage_offset());
}

void WeightCache::make(Plan& plan, Entry& entry) const {
  entry.copy.copy_(entry.source);
  plan.act(*entry.row, entry.copy);
  const TapsSuspended suspended;  // a portable digest is made of operators
  entry.digest = numeric::digest(entry.master), entry.version = version_of(entry.master), entry.epoch = epoch_;
}

void WeightCache::new_epoch(Plan& plan) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const at::AutoDispatchBelowADInplaceOrView below;
  epoch_ += 1;
  for (auto& [key, entry] : entries_) {
    if (entry.captured) make(plan, entry);
  }
}

std::vector<std::string> WeightCache::changed_masters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const TapsSuspended suspended;
  std::vector<std::string> names;
  for (const auto& [key, entry] : entries_) {
    if (entry.epoch != epoch_ || entry.version != version_of(entry.master)) continue;
    if (numeric::digest(entry.master).item<int64_t>() != entry.digest.item<int64_t>())
      names.push_back(site::place_of(entry.row->place).path);
  }
  return names;
}

void substitute(Plan& plan, uint64_t named, uint32_t target, const std::string& base, const c10::FunctionSchema& schema,
                const site::Location& location, torch::jit::Stack* stack, bool above_autograd) {
  const std::size_t count = schema.arguments().size();
  struct Weight {
    at::Tensor argument;  // as the operator was called
    WeightCache::Before before;
  };
  c10::SmallVector<Weight, 4> replaced(count);  // weights that a rule has faulted
  for (const auto& rule : plan.rules()) {
    const site::Surface surface = rule->rule.where->surface;
    if ((named >> rule->index & 1) == 0) continue;
    const bool weights = site::is_of_parameters(surface) && !above_autograd;
    const bool inputs = surface == site::Surface::kInput && (above_autograd || !inputs_done);
    if (!weights && !inputs) continue;
    for (std::size_t i = 0; i < count; ++i) {
      c10::IValue& value = torch::jit::peek(*stack, i, count);
      if (!value.isTensor() || !value.toTensor().defined() || is_written(schema.arguments()[i])) continue;
      const bool is_replaced = replaced[i].argument.defined();
      if (inputs && is_replaced) continue;
      const at::Tensor argument = is_replaced ? replaced[i].argument : value.toTensor();
      if (!can_fault(argument)) continue;
      at::Tensor parameter = site::parameter_of_storage(argument);
      const std::optional<CastCopy> cast = parameter.defined() ? std::nullopt : cast_copy_of_storage(argument);
      if (cast) parameter = cast->parameter;
      if (weights && (!parameter.defined() || !is_meant(surface, parameter, schema.arguments()[i]))) continue;
      if (inputs && parameter.defined()) continue;
      site::Location at = location;
      const site::PlaceId owner =
          weights ? site::place_of_storage(parameter, family_of(base) == "embedding") : site::kNowhere;
      if (owner != site::kNowhere) at.place = owner;
      Row& row = plan.row(*rule, target, base, at, surface, argument);
      if (!row.unreached.empty()) {
        row.calls.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      if (weights) {
        replaced[i].argument = argument;
        value = plan.weights().faulted(plan, row, parameter, cast, argument, replaced[i].before);
      } else {
        value = pass_through(plan.shared_from_this(), row, argument);
      }
    }
  }
}

}  // namespace faultline::tap
