#include "diagnose/compare.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "diagnose/recorder.h"
#include "lab/injection.h"
#include "tap/operators.h"

namespace faultline {
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
    difference.family = std::string(family_of(operation));
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

}  // namespace

std::vector<RecordedCall> record_forward(const CausalLm& model, const at::Tensor& tokens) {
  const at::NoGradGuard no_gradients;
  const PhaseGuard phase(Phase::kDiagnose);
  return record_calls([&] { model.logits(model.hidden_states(tokens)); });
}

Comparison compare_sides(const std::vector<RecordedCall>& calls, const Side& second) {
  const at::NoGradGuard no_gradients;
  std::map<std::string, Gathered> whole;
  std::map<std::pair<std::string, int64_t>, Gathered> by_layer;
  std::set<std::string> missing;
  for (const RecordedCall& call : calls) {
    if (!call.op || call.results.empty() || !call.results[0].is_floating_point()) continue;
    if (family_of(call.name).empty()) continue;  // moves data
    at::Tensor again;
    try {
      again = run_again(call, second);
    } catch (const c10::Error& error) {
      missing.insert(fmt::format("{}: {}", call.name, error.msg()));
      continue;
    }
    const at::Tensor error = relative_error(call.results[0], again);
    if (error.numel() == 0) continue;
    for (Gathered* one : {&whole[call.name], &by_layer[{call.name, place_of(call.place).layer}]})
      ++one->calls, one->errors.push_back(error);
  }
  Comparison comparison;
  for (const auto& [name, one] : whole) comparison.operators.push_back(one.measured(name, -1));
  for (const auto& [key, one] : by_layer) comparison.layers.push_back(one.measured(key.first, key.second));
  std::stable_sort(comparison.operators.begin(), comparison.operators.end(),
                   [](const auto& a, const auto& b) { return a.rms > b.rms; });
  comparison.not_compared.assign(missing.begin(), missing.end());
  return comparison;
}

namespace {

nlohmann::ordered_json to_json(const Difference& difference) {
  return {
      {"operator", difference.operation}, {"family", difference.family},     {"layer", difference.layer},
      {"calls", difference.calls},        {"elements", difference.elements}, {"share_equal", difference.share_equal},
      {"mean", difference.mean},          {"rms", difference.rms},           {"quantiles", difference.quantiles}};
}

}  // namespace

nlohmann::ordered_json to_json(const Comparison& comparison) {
  auto operators = nlohmann::ordered_json::array(), layers = nlohmann::ordered_json::array();
  for (const Difference& one : comparison.operators) operators.push_back(to_json(one));
  for (const Difference& one : comparison.layers) layers.push_back(to_json(one));
  return {{"operators", operators}, {"layers", layers}, {"not_compared", comparison.not_compared}};
}

nlohmann::ordered_json profile_json(const Difference& difference, at::ScalarType dtype) {
  auto quantiles = nlohmann::ordered_json::array();
  for (const auto& [p, error] : difference.quantiles) quantiles.push_back({p, error});
  const char* name = dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp32";
  return {{"version", 1}, {"dtype", name}, {"share_equal", difference.share_equal}, {"quantiles", quantiles}};
}

}  // namespace faultline
