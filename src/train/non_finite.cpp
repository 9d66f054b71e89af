#include "train/non_finite.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "site/scope.h"

namespace faultline {
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

// What only makes room holds whatever was there before.
bool makes_room(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

void look(const at::RecordFunction& function, at::ObserverContext*) {
  if (checking || makes_room(function.name())) return;
  checking = true;
  const auto outputs = function.outputs();
  if (std::any_of(outputs.begin(), outputs.end(), [](const c10::IValue& value) { return is_bad(value); })) {
    const Location location = locate();
    const Place& place = place_of(location.place);
    const std::lock_guard<std::mutex> lock(mutex);
    if (!found)
      found = fmt::format("{} at {}{}, {}", function.name(), place.path.empty() ? "no named place" : place.path,
                          place.layer < 0 ? "" : fmt::format(" (layer {})", place.layer), phase_name(location.phase));
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

}  // namespace faultline
