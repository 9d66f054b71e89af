#include "diagnose/recorder.h"

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>

#include "base/error.h"
#include "site/backend.h"
#include "tap/boundary.h"
#include "tap/operators.h"

namespace faultline::diagnose {
namespace {

constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
thread_local std::vector<RecordedCall>* calls = nullptr;

uint64_t writes_into(const RecordedCall& call) {
  std::vector<at::Tensor> tensors = call.results;
  for (const c10::IValue& value : call.arguments) tap::collect_tensors(value, tensors);
  uint64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor.is_inference() ? 0 : tensor._version();
  return sum;
}

void record_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordKey);
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(site::backend_key(below))) {
    op.redispatchBoxed(below, stack);  // its parts are recorded
    return;
  }
  RecordedCall call;
  call.name = std::string(tap::base_name(tap::full_name(op.operator_name())));
  const auto given = torch::jit::last(*stack, op.schema().arguments().size());
  call.arguments.assign(given.begin(), given.end());
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : call.arguments) tap::collect_tensors(value, tensors);
  call.place = tap::locate(tap::weight_use_of(call.name), tensors).place;
  call.op = op;
  {
    const c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
    op.redispatchBoxed(below, stack);
  }
  for (std::size_t i = 0; i < op.schema().returns().size(); ++i)
    tap::collect_tensors(torch::jit::peek(*stack, i, op.schema().returns().size()), call.results);
  call.writes = writes_into(call);
  if (calls != nullptr) calls->push_back(std::move(call));
}

at::Tensor record_boundary(const at::Tensor& x, site::PlaceId place, site::Surface surface) {
  const c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  at::Tensor y = tap::kPlanListener.boundary(x, place, surface);
  if (calls != nullptr && !y.is_same(x)) calls->push_back({"boundary", place, {x}, {y}, std::nullopt});
  return y;
}

bool wants(site::PlaceId place, site::Surface surface) { return tap::kPlanListener.wants(place, surface); }
void count(site::Phase phase, site::ForwardKind kind, int64_t number) {
  tap::kPlanListener.forwards(phase, kind, number);
}

const site::SiteListener kRecordingListener{record_boundary, wants, count};

// Puts things back whatever the run throws.
struct Recording {
  std::vector<RecordedCall> all;
  bool plan = tap::active_plan() != nullptr;

  Recording() {
    calls = &all;
    site::set_site_listener(&kRecordingListener);
    c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
  }
  ~Recording() {
    c10::impl::tls_set_dispatch_key_included(kRecordKey, false);
    site::set_site_listener(plan ? &tap::kPlanListener : nullptr);
    calls = nullptr;
  }
};

thread_local std::unique_ptr<Recording> open_recording;

}  // namespace

bool overwritten(const RecordedCall& call) {
  return (call.op && call.op->schema().is_mutable()) || writes_into(call) != call.writes;
}

void begin_recording() {
  if (calls != nullptr) throw UsageError("a recording is under way on this thread; end it first");
  open_recording = std::make_unique<Recording>();
}

std::vector<RecordedCall> end_recording() {
  if (!open_recording) throw UsageError("no recording is under way on this thread");
  const std::unique_ptr<Recording> recording = std::move(open_recording);
  return std::move(recording->all);
}

std::vector<RecordedCall> record_calls(const std::function<void()>& run) {
  Recording recording;
  run();
  return std::move(recording.all);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&record_operator>());
}

}  // namespace faultline::diagnose
