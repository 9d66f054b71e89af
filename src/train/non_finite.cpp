#include "train/non_finite.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "site/scope.h"

namespace faultline::train {
namespace {

std::mutex mutex;
bool watching = false;  // guarded by mutex, as is `found`
std::optional<std::string> found;
thread_local bool checking = false;  // the check itself runs operators

bool is_bad(const at::Tensor& tensor) {
  if (!tensor.defined() || !at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0 ||
      tensor.layout() != at::kStrided)
    return false;
  return !tensor.isfinite().all().item<bool>();
}

bool is_bad(const c10::IValue& value) {
  if (value.isTensor()) return is_bad(value.toTensor());
  if (!value.isTensorList()) return false;
  const std::vector<at::Tensor> tensors = value.toTensorVector();
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return is_bad(tensor); });
}

// What only makes room, or looks at it in another shape, holds whatever was there before.
bool makes_nothing(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  for (const std::string_view room : {"aten::empty", "aten::new_empty", "aten::resize", "aten::set_"})
    if (name.starts_with(room)) return true;
  const auto op = function.operator_name();
  const auto found_op = op ? c10::Dispatcher::singleton().findSchema(*op) : std::nullopt;
  if (!found_op || !found_op->hasSchema()) return false;
  const auto& returns = found_op->schema().returns();
  return !returns.empty() && returns[0].alias_info() != nullptr && !returns[0].alias_info()->isWrite();
}

void look(const at::RecordFunction& function, at::ObserverContext*) {
  if (checking || makes_nothing(function)) return;
  checking = true;
  const auto& outputs = function.outputs();
  if (std::any_of(outputs.begin(), outputs.end(), [](const c10::IValue& value) { return is_bad(value); })) {
    const site::Location location = site::locate();
    const site::Place& place = site::place_of(location.place);
    const std::lock_guard<std::mutex> lock(mutex);
    if (!found)
      found =
          fmt::format("{} at {}{}, {}", function.name(), place.path.empty() ? "no named place" : place.path,
                      place.layer < 0 ? "" : fmt::format(" (layer {})", place.layer), site::phase_name(location.phase));
  }
  checking = false;
}

}  // namespace

NonFiniteWatch::NonFiniteWatch() {
  const std::lock_guard<std::mutex> lock(mutex);
  FL_ASSERT(!watching);
  watching = true;
  found.reset();
  const auto start = [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; };
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(start, look).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
}

NonFiniteWatch::~NonFiniteWatch() {
  at::removeCallback(handle_);
  const std::lock_guard<std::mutex> lock(mutex);
  watching = false;
}

std::optional<std::string> NonFiniteWatch::first() const {
  const std::lock_guard<std::mutex> lock(mutex);
  return found;
}

}  // namespace faultline::train
