#include "diagnose/recorder.h"

#include <ATen/ATen.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>

#include "site/backend.h"
#include "tap/boundary.h"
#include "tap/operators.h"

namespace faultline::diagnose {
namespace {

constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
thread_local CallSink* sink = nullptr;

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, OperatorFacts> known;
  const auto found = known.find(op);
  if (found != known.end()) return found->second;
  OperatorFacts facts;
  facts.name = std::string(tap::base_name(tap::full_name(op.operator_name())));
  facts.overload = op.operator_name().overload_name;
  facts.family = std::string(tap::family_of(facts.name));
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (const auto* alias = arguments[i].alias_info(); alias != nullptr && alias->isWrite()) facts.written.push_back(i);
  std::stable_partition(facts.written.begin(), facts.written.end(),
                        [&](std::size_t i) { return arguments[i].name().starts_with("out"); });
  const auto& returns = op.schema().returns();
  // Some kernels of vLLM's claim to write into what they only read.
  const bool gives_new = !returns.empty() && returns[0].alias_info() == nullptr;
  if (gives_new && !facts.written.empty() && !arguments[facts.written[0]].name().starts_with("out"))
    facts.written.clear();
  facts.is_view = facts.written.empty() && !returns.empty() && returns[0].alias_info() != nullptr;
  facts.is_cache_write = facts.name.find("reshape_and_cache") != std::string::npos;
  facts.is_wrapper = facts.name.starts_with("vllm::");
  facts.is_leaf = facts.name.starts_with("_C") || facts.name.starts_with("_vllm");
  return known.emplace(op, std::move(facts)).first->second;
}

c10::IValue copied(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor().clone();
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor.defined() ? tensor.clone() : tensor);
  return list;
}

uint64_t writes_into(const RecordedCall& call) {
  std::vector<at::Tensor> tensors = call.results;
  for (const c10::IValue& value : call.arguments) tap::collect_tensors(value, tensors);
  uint64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor.is_inference() ? 0 : tensor._version();
  return sum;
}

void record_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordKey);
  const OperatorFacts& facts = facts_of(op);
  const bool has_parts = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                         !op.hasKernelForDispatchKey(site::backend_key(below));
  if (facts.is_wrapper || (has_parts && !facts.is_leaf)) {
    op.redispatchBoxed(below, stack);  // its parts are recorded
    return;
  }
  CallSink* taker = sink;
  const c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  if (taker == nullptr || !taker->wants(facts)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  RecordedCall call;
  call.name = facts.name, call.overload = facts.overload, call.op = op;
  const auto given = torch::jit::last(*stack, op.schema().arguments().size());
  call.arguments.assign(given.begin(), given.end());
  std::vector<at::Tensor> tensors, written;
  for (const c10::IValue& value : call.arguments) tap::collect_tensors(value, tensors);
  for (const std::size_t i : facts.written) {
    if (facts.is_cache_write) continue;
    tap::collect_tensors(call.arguments[i], written);
    call.arguments[i] = copied(call.arguments[i]);
  }
  call.place = tap::locate(tap::weight_use_of(call.name), tensors).place;
  op.redispatchBoxed(below, stack);
  if (facts.written.empty()) {
    for (std::size_t i = 0; i < op.schema().returns().size(); ++i)
      tap::collect_tensors(torch::jit::peek(*stack, i, op.schema().returns().size()), call.results);
  } else {
    for (const at::Tensor& tensor : written) call.results.push_back(tensor.clone());  // more may be written into it
  }
  call.writes = writes_into(call);
  taker->take(facts, std::move(call));
}

at::Tensor record_boundary(const at::Tensor& x, site::PlaceId place, site::Surface surface) {
  const c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  at::Tensor y = tap::kPlanListener.boundary(x, place, surface);
  static const OperatorFacts facts{"boundary", "", "", {}, false};
  if (sink != nullptr && !y.is_same(x) && sink->wants(facts))
    sink->take(facts, {"boundary", place, {x}, {y}, std::nullopt});
  return y;
}

bool wants(site::PlaceId place, site::Surface surface) { return tap::kPlanListener.wants(place, surface); }
void count(site::Phase phase, site::ForwardKind kind, int64_t number) {
  tap::kPlanListener.forwards(phase, kind, number);
}

const site::SiteListener kRecordingListener{record_boundary, wants, count, tap::kPlanListener.tells_decodings_apart};

struct All : CallSink {
  std::vector<RecordedCall> calls;
  bool wants(const OperatorFacts&) const override { return true; }
  void take(const OperatorFacts&, RecordedCall&& call) override { calls.push_back(std::move(call)); }
};

}  // namespace

bool overwritten(const RecordedCall& call) { return call.writes && *call.writes != writes_into(call); }

Recording::Recording(CallSink& taker) : before_(sink), has_plan_(tap::active_plan() != nullptr) {
  sink = &taker;
  site::set_site_listener(&kRecordingListener);
  c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
}

// Puts things back whatever the run throws.
Recording::~Recording() {
  c10::impl::tls_set_dispatch_key_included(kRecordKey, before_ != nullptr);
  if (before_ == nullptr) site::set_site_listener(has_plan_ ? &tap::kPlanListener : nullptr);
  sink = before_;
}

std::vector<RecordedCall> record_calls(const std::function<void()>& run) {
  All all;
  {
    const Recording recording(all);
    run();
  }
  return std::move(all.calls);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&record_operator>());
}

}  // namespace faultline::diagnose
