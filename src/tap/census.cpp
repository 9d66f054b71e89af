#include "tap/census.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/text.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"

namespace faultline {
namespace {

constexpr c10::DispatchKey kCensusKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct Counting {
  std::mutex mutex;
  std::map<std::tuple<std::string, PlaceId, Phase>, CensusEntry> entries;
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
    return base.find("backward") == std::string_view::npos ? forward : 2.5 * forward;
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

void count_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCensusKey);
  const c10::DispatchKey backend =
      below.highestBackendKey() == c10::BackendComponent::CUDABit ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  const bool composite =
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && !op.hasKernelForDispatchKey(backend);
  if (composite) {  // its parts are counted
    op.redispatchBoxed(below, stack);
    return;
  }
  const std::string name = full_name(op.operator_name());
  std::vector<at::Tensor> given, results;
  for (std::size_t i = 0; i < op.schema().arguments().size(); ++i)
    collect_tensors(torch::jit::peek(*stack, i, op.schema().arguments().size()), given);
  const Location location = locate(base_name(name), given);
  {
    const c10::impl::ExcludeDispatchKeyGuard guard(kCensusKey);
    op.redispatchBoxed(below, stack);
  }
  for (std::size_t i = 0; i < op.schema().returns().size(); ++i)
    collect_tensors(torch::jit::peek(*stack, i, op.schema().returns().size()), results);
  double bytes = 0;
  for (const auto* tensors : {&given, &results}) {
    for (const at::Tensor& tensor : *tensors)
      bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
  }
  Counting& all = counting();
  const std::lock_guard<std::mutex> lock(all.mutex);
  CensusEntry& entry = all.entries[{name, location.place, location.phase}];
  if (entry.calls == 0) entry = {name, location.place, location.phase, 0, 0, 0, shapes_text(given)};
  entry.calls += 1;
  entry.flops += flops_of(base_name(name), given, results);
  entry.bytes += bytes;
}

// "": the rule acts there.
std::string why_not(const Plan& plan, const PlanRule& rule, const std::set<std::string>& operators,
                    const CensusEntry& entry) {
  if (!operators.contains(entry.name)) return "no rule names it";
  return plan.why_unreached(rule, {entry.place, entry.phase}, rule.rule.where->surface);
}

std::vector<std::set<std::string>> operators_of_rules(const Plan& plan) {
  std::vector<std::set<std::string>> names;
  for (const auto& rule : plan.rules()) {
    const auto found = operators_of(*rule);
    names.emplace_back(found.begin(), found.end());
  }
  return names;
}

}  // namespace

void begin_census() {
  Counting& all = counting();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.entries.clear();
  }
  c10::impl::tls_set_dispatch_key_included(kCensusKey, true);
}

Census end_census() {
  c10::impl::tls_set_dispatch_key_included(kCensusKey, false);
  Counting& all = counting();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Census census;
  for (auto& [key, entry] : all.entries) census.push_back(entry);
  all.entries.clear();
  return census;
}

nlohmann::ordered_json to_json(const Census& census) {
  auto json = nlohmann::ordered_json::array();
  for (const CensusEntry& entry : census) {
    const Place& place = place_of(entry.place);
    json.push_back({{"operator", entry.name},
                    {"family", std::string(family_of(base_name(entry.name)))},
                    {"phase", std::string(phase_name(entry.phase))},
                    {"place", place.path},
                    {"layer", place.layer},
                    {"calls", entry.calls},
                    {"flops", entry.flops},
                    {"bytes", entry.bytes},
                    {"shapes", entry.shapes}});
  }
  return json;
}

std::string reasons_text(const std::map<std::string, int64_t>& calls_by_reason) {
  std::string text;
  for (const auto& [reason, calls] : calls_by_reason)
    text += fmt::format("{}{} calls: {}", text.empty() ? "" : "; ", calls, reason);
  return text;
}

std::vector<Prediction> predict(const Plan& plan, const Census& census) {
  const auto operators = operators_of_rules(plan);
  std::vector<Prediction> predictions;
  for (const auto& rule : plan.rules()) {
    Prediction prediction{rule.get(), 0, {}, {}};
    for (const CensusEntry& entry : census) {
      const std::string reason = why_not(plan, *rule, operators[rule->index], entry);
      if (!reason.empty()) {
        prediction.unreached[reason] += entry.calls;
        continue;
      }
      prediction.sites += 1;
      prediction.calls[static_cast<std::size_t>(entry.phase)] += entry.calls;
    }
    predictions.push_back(prediction);
  }
  return predictions;
}

void check_reached(const Plan& plan, const Censuses& censuses) {
  std::vector<Prediction> all(plan.rules().size());
  std::set<std::string> ran;
  for (const auto& [kind, census] : censuses) {
    for (const CensusEntry& entry : census) ran.insert(std::string(base_name(entry.name)));
    for (const Prediction& prediction : predict(plan, census)) {
      Prediction& sum = all[prediction.rule->index];
      sum.sites += prediction.sites;
      for (const auto& [reason, calls] : prediction.unreached) sum.unreached[reason] += calls;
    }
  }
  for (const auto& rule : plan.rules()) {
    const std::string& pattern = rule->rule.where->operator_pattern;
    const Prediction& sum = all[rule->index];
    if (sum.sites > 0 || pattern.empty()) continue;
    throw UsageError(fmt::format("rule '{}': operator '{}' matches nothing that ran ({}){}", rule->rule.name, pattern,
                                 sum.unreached.empty() ? "nothing ran" : reasons_text(sum.unreached),
                                 did_you_mean(pattern, std::vector<std::string>(ran.begin(), ran.end()))));
  }
}

nlohmann::ordered_json coverage(const Plan& plan, const Census& census) {
  const auto operators = operators_of_rules(plan);
  struct Sums {
    double calls = 0, flops = 0, bytes = 0;
  };
  std::map<Phase, std::pair<Sums, Sums>> phases;  // all, reached
  std::map<std::tuple<Phase, std::string, std::string>, int64_t> missed;
  for (const CensusEntry& entry : census) {
    std::string reason = "no rule names it";
    for (const auto& rule : plan.rules()) {
      const std::string why = why_not(plan, *rule, operators[rule->index], entry);
      if (why != "no rule names it") reason = why;
      if (why.empty()) break;
    }
    auto& [all, reached] = phases[entry.phase];
    for (Sums* sums : {&all, reason.empty() ? &reached : nullptr}) {
      if (sums == nullptr) continue;
      sums->calls += static_cast<double>(entry.calls), sums->flops += entry.flops, sums->bytes += entry.bytes;
    }
    if (!reason.empty()) missed[{entry.phase, entry.name, reason}] += entry.calls;
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [phase, sums] : phases) {
    const auto& [all, reached] = sums;
    auto not_reached = nlohmann::ordered_json::array();
    for (const auto& [key, calls] : missed) {
      if (std::get<0>(key) == phase)
        not_reached.push_back({{"operator", std::get<1>(key)}, {"calls", calls}, {"why", std::get<2>(key)}});
    }
    json[std::string(phase_name(phase))] = {{"operators", all.calls},
                                            {"reached", reached.calls},
                                            {"flops_share", all.flops > 0 ? reached.flops / all.flops : 0},
                                            {"bytes_share", all.bytes > 0 ? reached.bytes / all.bytes : 0},
                                            {"not_reached", not_reached}};
  }
  return json;
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&count_operator>());
}

}  // namespace faultline
