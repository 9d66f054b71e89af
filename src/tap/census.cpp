#include "tap/census.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "base/json.h"
#include "site/backend.h"
#include "tap/boundary.h"
#include "tap/counts.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"
#include "tap/routed.h"

namespace faultline::tap {
namespace {

constexpr c10::DispatchKey kCensusKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

constexpr std::string_view kInputBoundary = "boundary:input", kOutputBoundary = "boundary:output";

struct Counted {
  CensusEntry entry;
  bool reads_slice = false;  // of a parameter that holds all experts
};
struct Counting {
  std::mutex mutex;
  std::map<std::tuple<site::ForwardKind, std::string, site::PlaceId, site::Phase>, Counted> entries;
  site::ForwardTally before{};  // forwards that the counting thread had begun
};
Counting& counting() {
  static auto* the_counting = new Counting;
  return *the_counting;
}

double product(c10::IntArrayRef sizes) {
  double all = 1;
  for (const int64_t size : sizes) all *= static_cast<double>(size);
  return all;
}

// Multiply-adds count twice. Matrix products by their shapes, attention by its two products, the rest one a result.
double flops_of(std::string_view base, const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& results) {
  const std::string_view family = family_of(base);
  if (family == "matmul") {
    // The last two matrices of the arguments are the factors; addmm's first one is added.
    std::vector<at::Tensor> factors;
    for (const at::Tensor& tensor : given) {
      if (tensor.dim() >= 1) factors.push_back(tensor);
    }
    const bool adds = base.find("add") != std::string_view::npos && factors.size() >= 3;
    const std::size_t first = adds ? 1 : 0;
    const int64_t outputs = base == "faultline::few_rows_linear" ? 0 : -1;  // its weight lies transposed
    if (factors.size() >= first + 2)
      return 2 * product(factors[first].sizes()) *
             static_cast<double>(factors[first + 1].dim() >= 2 ? factors[first + 1].size(outputs) : 1);
  }
  if (family == "attention" && given.size() >= 3 && given[0].dim() == 4 && given[1].dim() == 4) {
    const double forward = 4 * product(given[0].sizes()) * static_cast<double>(given[1].size(-2));
    return is_gradient_operator(base) ? 2.5 * forward : forward;
  }
  double all = 0;
  for (const at::Tensor& tensor : results) all += product(tensor.sizes());
  return all;
}

std::string shapes_text(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors)
    text += fmt::format("{}[{}]", text.empty() ? "" : " ", fmt::join(tensor.sizes(), ","));
  return text;
}

bool reads_slice_of_parameter(const std::vector<at::Tensor>& given) {
  for (const at::Tensor& tensor : given) {
    const at::Tensor parameter = tensor.dim() >= 2 ? site::parameter_of_storage(tensor) : at::Tensor();
    if (parameter.defined() && parameter.dim() == tensor.dim() + 1 &&
        tensor.numel() * parameter.size(0) == parameter.numel())
      return true;
  }
  return false;
}

// What the tap would act on: dense floating-point results that are no views of arguments.
int64_t writes_of(const c10::FunctionSchema& schema, const std::vector<at::Tensor>& given,
                  std::span<const c10::IValue> arguments, std::span<const c10::IValue> returned) {
  const Results where = results_of(schema);
  std::vector<at::Tensor> written;
  for (const std::size_t i : where.written) collect_tensors(arguments[i], written);
  if (written.empty()) {
    for (const std::size_t i : where.returned) collect_tensors(returned[i], written);
    std::erase_if(written, [&](const at::Tensor& result) { return shares_storage(result, given); });
  }
  return std::count_if(written.begin(), written.end(), can_fault);
}

void count_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCensusKey);
  const bool composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                         !op.hasKernelForDispatchKey(site::backend_key(below));
  if (composite) {  // its parts are counted
    op.redispatchBoxed(below, stack);
    return;
  }
  const std::string name = full_name(op.operator_name());
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size()).vec();
  std::vector<at::Tensor> given, results;
  for (const c10::IValue& argument : arguments) collect_tensors(argument, given);
  const site::Location location = locate(weight_use_of(base_name(name)), given);
  const site::ForwardKind kind = site::forward_kind();
  {
    const c10::impl::ExcludeDispatchKeyGuard guard(kCensusKey);
    op.redispatchBoxed(below, stack);
  }
  const auto returned = torch::jit::last(*stack, op.schema().returns().size());
  for (const c10::IValue& result : returned) collect_tensors(result, results);
  double bytes = 0;
  for (const auto* tensors : {&given, &results}) {
    for (const at::Tensor& tensor : *tensors)
      bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
  }
  Counting& all = counting();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Counted& counted = all.entries[{kind, name, location.place, location.phase}];
  CensusEntry& entry = counted.entry;
  if (entry.calls == 0) entry = {name, location.place, location.phase, 0, 0, 0, shapes_text(given)};
  entry.calls += 1;
  entry.flops += flops_of(base_name(name), given, results);
  entry.bytes += bytes;
  entry.writes += writes_of(op.schema(), given, arguments, {returned.data(), returned.size()});
  counted.reads_slice |= reads_slice_of_parameter(given);
}

// Notes how many routed calls made an entry. An expert that is a module of its own runs when it is chosen; experts that
// share one module run one by one where an operator read one expert's slice of the weights, and all at once otherwise.
void note_routing(Censuses& censuses, const std::set<std::string>& looped, bool merged) {
  for (auto& [kind, census] : censuses) {
    for (CensusEntry& entry : census) {
      const auto place = expert_place(site::place_of(entry.place).path);
      if (!place || (!place->number && !looped.contains(place->experts))) continue;
      int64_t routed = 0;
      for (int k = 0; k < site::kForwardKinds; ++k) {
        if (!merged && k != static_cast<int>(kind)) continue;
        const auto times =
            routed_in_census().of(site::place_id(place->experts), entry.phase, static_cast<site::ForwardKind>(k));
        for (std::size_t e = 0; e < times.size(); ++e) {
          if (!place->number || static_cast<std::size_t>(*place->number) == e) routed += times[e];
        }
      }
      if (place->number || (routed > 0 && entry.writes % routed == 0)) entry.routed = routed;
    }
  }
}

// Forwards since the census began.
int64_t begun(const Counting& all, std::size_t phase, std::size_t kind) {
  return site::forwards_begun()[phase][kind] - all.before[phase][kind];
}

Censuses end_counting(bool merged) {
  c10::impl::tls_set_dispatch_key_included(kCensusKey, false);
  record_routing(false);
  Counting& all = counting();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Censuses censuses;
  bool any = false;
  for (std::size_t p = 0; p < site::kPhases; ++p) {
    for (std::size_t k = 0; k < site::kForwardKinds; ++k) any |= begun(all, p, k) > 0;
  }
  std::set<std::string> looped;
  std::map<std::tuple<std::string, site::PlaceId, site::Phase>, CensusEntry> sums;
  for (auto& [key, counted] : all.entries) {
    const CensusEntry& entry = counted.entry;
    if (counted.reads_slice) {
      if (const auto place = expert_place(site::place_of(entry.place).path)) looped.insert(place->experts);
    }
    if (merged) {
      CensusEntry& sum = sums[{entry.name, entry.place, entry.phase}];
      if (sum.calls == 0) sum = {entry.name, entry.place, entry.phase, 0, 0, 0, entry.shapes};
      sum.calls += entry.calls, sum.flops += entry.flops, sum.bytes += entry.bytes, sum.writes += entry.writes;
      continue;
    }
    const site::ForwardKind kind = std::get<0>(key);
    const bool backward = entry.phase == site::Phase::kActorBackward || entry.phase == site::Phase::kRecompute;
    const auto phase = static_cast<std::size_t>(backward ? site::Phase::kActorBackward : entry.phase);
    const int64_t forwards = begun(all, phase, static_cast<std::size_t>(kind));
    censuses[kind].push_back(entry);
    censuses[kind].back().forwards = forwards > 0 || !any ? forwards : kOutsideOfForwards;
  }
  for (auto& [key, entry] : sums) censuses[site::ForwardKind::kWhole].push_back(std::move(entry));
  note_routing(censuses, looped, merged);
  all.entries.clear();
  return censuses;
}

}  // namespace

void count_boundary(site::PlaceId place, site::Surface surface) {
  if (!c10::impl::tls_is_dispatch_key_included(kCensusKey)) return;
  const std::string name(surface == site::Surface::kInput ? kInputBoundary : kOutputBoundary);
  const site::Phase phase = site::locate().phase;
  Counting& all = counting();
  const std::lock_guard<std::mutex> lock(all.mutex);
  CensusEntry& entry = all.entries[{site::forward_kind(), name, place, phase}].entry;
  if (entry.calls == 0) entry = {name, place, phase, 0, 0, 0, ""};
  entry.calls += 1, entry.writes += 1;
}

namespace {

std::atomic<const Plan*> told{nullptr};

bool is_told(site::PlaceId place, site::Surface surface) {
  const Plan* plan = told.load();
  return plan != nullptr && boundary_is_wanted(*plan, place, surface);
}
at::Tensor count_and_pass(const at::Tensor& x, site::PlaceId place, site::Surface surface) {
  if (is_told(place, surface)) count_boundary(place, surface);
  return x;
}
const site::SiteListener kCensusListener{count_and_pass, is_told, [](site::Phase, site::ForwardKind, int64_t) {},
                                         [] { return false; }};

}  // namespace

ToldBoundaries::ToldBoundaries(const Plan& plan) {
  FL_ASSERT(active_plan() == nullptr && told == nullptr);
  told = &plan;
  site::set_site_listener(&kCensusListener);
}
ToldBoundaries::~ToldBoundaries() {
  site::set_site_listener(nullptr);
  told = nullptr;
}

std::optional<site::Surface> boundary_of(const CensusEntry& entry) {
  if (entry.name == kInputBoundary) return site::Surface::kInput;
  if (entry.name == kOutputBoundary) return site::Surface::kOutput;
  return {};
}

void begin_census() {
  Counting& all = counting();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.entries.clear();
    all.before = site::forwards_begun();
  }
  record_routing(true);
  c10::impl::tls_set_dispatch_key_included(kCensusKey, true);
}

Census end_census() { return std::move(end_counting(/*merged=*/true)[site::ForwardKind::kWhole]); }

Censuses end_census_by_kind() { return end_counting(/*merged=*/false); }

Json to_json(const Census& census) {
  auto json = Json::array();
  for (const CensusEntry& entry : census) {
    if (boundary_of(entry)) continue;
    const site::Place& place = site::place_of(entry.place);
    const bool is_unknown = entry.writes > 0 && is_unknown_operator(base_name(entry.name));
    json.push_back({{"operator", entry.name},
                    {"family", is_unknown ? "unknown" : std::string(family_of(base_name(entry.name)))},
                    {"phase", std::string(site::phase_name(entry.phase))},
                    {"place", place.path},
                    {"layer", place.layer},
                    {"calls", entry.calls},
                    {"flops", entry.flops},
                    {"bytes", entry.bytes},
                    {"shapes", entry.shapes}});
  }
  return json;
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&count_operator>());
}

}  // namespace faultline::tap
