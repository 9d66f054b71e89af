#include "diagnose/compare/compare.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "diagnose/recorder.h"
#include "site/scope.h"
#include "tap/operators.h"

namespace faultline::diagnose {
namespace {

constexpr std::array kQuantiles = {0.0, 0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 1.0};

at::Tensor moved(const at::Tensor& x, const Side& side) {
  if (!x.defined()) return x;
  // Norm weights and angles are fp32 on every machine; what computes in 16 bits is what changes its type.
  const bool cast = x.is_floating_point() && x.scalar_type() != at::kFloat && x.scalar_type() != side.dtype;
  const at::Tensor there = x.to(side.device);
  return cast ? there.to(side.dtype) : there;
}

at::Tensor run_again(const RecordedCall& call, const Side& side) {
  torch::jit::Stack stack;
  for (const c10::IValue& value : call.arguments) {
    if (value.isTensor()) {
      stack.emplace_back(moved(value.toTensor(), side));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(moved(tensor, side));
      stack.emplace_back(list);
    } else {
      stack.push_back(value);
    }
  }
  call.op->callBoxed(stack);
  return stack.at(0).toTensor();
}

struct Gathered {
  int64_t calls = 0;
  std::vector<at::Tensor> errors;  // relative, fp64, flat

  Difference measured(const std::string& operation, int64_t layer) const {
    Difference difference;
    difference.operation = operation, difference.layer = layer, difference.calls = calls;
    difference.family = std::string(tap::family_of(operation));
    const at::Tensor all = at::cat(errors);
    const at::Tensor unequal = all.masked_select(all.ne(0));
    difference.elements = all.numel();
    difference.share_equal = 1 - static_cast<double>(unequal.numel()) / static_cast<double>(all.numel());
    difference.mean = all.mean().item<double>();
    difference.rms = all.square().mean().sqrt().item<double>();
    if (unequal.numel() < 2) return difference;
    const at::Tensor sorted = std::get<0>(unequal.sort());
    for (const double p : kQuantiles) {
      const auto at = static_cast<int64_t>(p * static_cast<double>(sorted.numel() - 1));
      difference.quantiles.emplace_back(p, sorted[at].item<double>());
    }
    return difference;
  }
};

at::Tensor relative_error(const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor a = first.to(at::kDouble).reshape(-1).cpu();
  const at::Tensor b = second.to(first.scalar_type()).to(at::kDouble).reshape(-1).cpu();
  const at::Tensor known = a.isfinite().logical_and(b.isfinite()).logical_and(a.ne(0));
  return ((b - a) / a).masked_select(known);
}

struct Gathering {
  std::map<std::string, Gathered> whole;
  std::map<std::pair<std::string, int64_t>, Gathered> by_layer;

  void add(const RecordedCall& call, const at::Tensor& other) {
    const at::Tensor error = relative_error(call.results[0], other);
    if (error.numel() == 0) return;
    for (Gathered* one : {&whole[call.name], &by_layer[{call.name, site::place_of(call.place).layer}]})
      ++one->calls, one->errors.push_back(error);
  }

  Comparison measured(std::vector<std::string> not_compared) const {
    Comparison comparison;
    for (const auto& [name, one] : whole) comparison.operators.push_back(one.measured(name, -1));
    for (const auto& [key, one] : by_layer) comparison.layers.push_back(one.measured(key.first, key.second));
    std::stable_sort(comparison.operators.begin(), comparison.operators.end(),
                     [](const auto& a, const auto& b) { return a.rms > b.rms; });
    comparison.not_compared = std::move(not_compared);
    return comparison;
  }
};

bool computes(const RecordedCall& call) {  // and does not only move data
  return call.op && !call.results.empty() && call.results[0].is_floating_point() && !tap::family_of(call.name).empty();
}

}  // namespace

std::vector<RecordedCall> record_forward(const model::CausalLm& model, const at::Tensor& tokens) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kDiagnose);
  return record_calls([&] { model.logits(model.hidden_states(tokens)); });
}

Comparison compare_sides(const std::vector<RecordedCall>& calls, const Side& second) {
  const at::NoGradGuard no_gradients;
  Gathering gathering;
  std::set<std::string> missing;
  for (const RecordedCall& call : calls) {
    if (!computes(call)) continue;
    try {
      gathering.add(call, run_again(call, second));
    } catch (const c10::Error& error) {
      missing.insert(fmt::format("{}: {}", call.name, error.msg()));
    }
  }
  return gathering.measured({missing.begin(), missing.end()});
}

void trace_forward(const model::CausalLm& model, const at::Tensor& tokens, TraceWriter& trace) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kDiagnose);
  if (!trace.begin_forward("whole", tokens, {}, {})) return;
  {
    const Recording recording(trace);
    model.logits(model.hidden_states(tokens));
  }
  trace.end_forward();
}

std::vector<NamedWeight> weights_of(model::CausalLm& model) {
  std::map<site::PlaceId, std::vector<model::Linear::Part>> parts;
  for (const model::Linear* linear : model.linears()) parts[linear->place] = linear->parts;
  std::vector<NamedWeight> all;
  for (const model::CausalLm::Parameter& parameter : model.parameters()) {
    const auto found = parts.find(parameter.place);
    if (found == parts.end() || found->second.empty()) {
      all.push_back({parameter.name, *parameter.tensor});
      continue;
    }
    const std::string ending = parameter.name.substr(parameter.name.rfind('.'));
    int64_t first = 0;
    for (const model::Linear::Part& part : found->second) {
      all.push_back({site::place_of(part.place).path + ending, parameter.tensor->narrow(0, first, part.size)});
      first += part.size;
    }
  }
  return all;
}

namespace {

Json to_json(const Difference& difference) {
  return {
      {"operator", difference.operation}, {"family", difference.family},     {"layer", difference.layer},
      {"calls", difference.calls},        {"elements", difference.elements}, {"share_equal", difference.share_equal},
      {"mean", difference.mean},          {"rms", difference.rms},           {"quantiles", difference.quantiles}};
}

}  // namespace

Json to_json(const Comparison& comparison) {
  auto operators = Json::array(), layers = Json::array();
  for (const Difference& one : comparison.operators) operators.push_back(to_json(one));
  for (const Difference& one : comparison.layers) layers.push_back(to_json(one));
  return {{"operators", operators}, {"layers", layers}, {"not_compared", comparison.not_compared}};
}

Json profile_json(const Difference& difference, at::ScalarType dtype) {
  auto quantiles = Json::array();
  for (const auto& [p, error] : difference.quantiles) quantiles.push_back({p, error});
  const char* name = dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp32";
  return {{"version", 1}, {"dtype", name}, {"share_equal", difference.share_equal}, {"quantiles", quantiles}};
}

}  // namespace faultline::diagnose
