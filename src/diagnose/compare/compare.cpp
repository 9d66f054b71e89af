#include "diagnose/compare/compare.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files/file.h"
#include "base/json.h"
#include "base/text.h"
#include "diagnose/recorder.h"
#include "site/scope.h"
#include "tap/operators.h"

namespace faultline::diagnose {
namespace {

at::Tensor moved(const at::Tensor& x, const Side& side) {
  if (!x.defined()) return x;
  // Norm weights and angles are fp32 on every machine; what computes in 16 bits is what changes its type.
  const bool cast = x.is_floating_point() && x.scalar_type() != at::kFloat && x.scalar_type() != side.dtype;
  const at::Tensor there = x.to(side.device);
  return cast ? there.to(side.dtype) : there;
}

at::Tensor run_again(const RecordedCall& call, const Side& side) {
  torch::jit::Stack stack;
  const auto& arguments = call.op->schema().arguments();
  for (const c10::IValue& value : call.arguments) {
    const auto* alias = arguments.at(stack.size()).alias_info();
    if (value.isTensor()) {
      const at::Tensor there = moved(value.toTensor(), side);
      const bool is_written = alias != nullptr && alias->isWrite() && there.defined();  // others may read it, too
      stack.emplace_back(is_written ? there.clone() : there);
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

struct Gathering {
  struct One {
    int64_t calls = 0;
    ErrorGathering errors;

    Difference measured(const std::string& operation, int64_t layer) const {
      return {operation, std::string(tap::family_of(operation)), layer, calls, errors.measured()};
    }
  };
  std::map<std::string, One> whole;
  std::map<std::pair<std::string, int64_t>, One> by_layer;

  void add(const RecordedCall& call, const at::Tensor& other) {
    if (other.numel() == 0) return;
    One one;
    if (!one.errors.add(call.results[0], other)) return;
    for (One* all : {&whole[call.name], &by_layer[{call.name, site::place_of(call.place).layer}]}) {
      ++all->calls;
      all->errors.add(one.errors);
    }
  }

  Comparison measured(std::vector<std::string> not_compared) const {
    Comparison comparison;
    for (const auto& [name, one] : whole) comparison.operators.push_back(one.measured(name, -1));
    for (const auto& [key, one] : by_layer) comparison.layers.push_back(one.measured(key.first, key.second));
    std::stable_sort(comparison.operators.begin(), comparison.operators.end(),
                     [](const auto& a, const auto& b) { return a.errors.noise_to_signal > b.errors.noise_to_signal; });
    comparison.not_compared = std::move(not_compared);
    return comparison;
  }
};

bool computes(const RecordedCall& call) {  // and does not only move data
  return call.op && !call.results.empty() && call.results[0].is_floating_point() && !tap::family_of(call.name).empty();
}

// What the call was given is still as it was.
bool can_be_made_again(const RecordedCall& call, std::set<std::string>& missing) {
  if (!overwritten(call)) return true;
  missing.insert(fmt::format("{}: something later wrote into its input", call.name));
  return false;
}

}  // namespace

std::vector<RecordedCall> record_forward(const model::CausalLm& model, const at::Tensor& tokens) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kDiagnose);
  return record_calls([&] { model.logits(model.hidden_states(tokens)); });
}

StoredCalls stored_calls(const std::filesystem::path& path) {
  Trace trace = read_trace(path);
  if (trace.detail() == Detail::kDigest)
    throw UsageError(path.string() + ": holds digests only, nothing can be made again; record with --detail full");
  StoredCalls stored;
  for (TracedCall& traced : trace.calls) {
    if (!traced.is_stored) continue;
    const at::ScalarType dtype = traced.call.results[0].scalar_type();
    if (dtype == at::kBFloat16 || dtype == at::kHalf) stored.dtype = dtype;
    stored.calls.push_back(std::move(traced.call));
  }
  return stored;
}

Comparison compare_sides(const std::vector<RecordedCall>& calls, const Side& second) {
  const at::NoGradGuard no_gradients;
  Gathering gathering;
  std::set<std::string> missing;
  for (const RecordedCall& call : calls) {
    if (!computes(call) || !can_be_made_again(call, missing)) continue;
    try {
      gathering.add(call, run_again(call, second));
    } catch (const c10::Error& error) {
      missing.insert(fmt::format("{}: {}", call.name, first_line(error.what_without_backtrace())));
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
  return {{"operator", difference.operation},
          {"family", difference.family},
          {"layer", difference.layer},
          {"calls", difference.calls},
          {"elements", difference.errors.elements},
          {"share_equal", difference.errors.share_equal},
          {"noise_to_signal", difference.errors.noise_to_signal},
          {"mean", difference.errors.mean},
          {"rms", difference.errors.rms},
          {"worst", difference.errors.worst}};
}

}  // namespace

Json to_json(const Comparison& comparison) {
  auto operators = Json::array(), layers = Json::array();
  for (const Difference& one : comparison.operators) operators.push_back(to_json(one));
  for (const Difference& one : comparison.layers) layers.push_back(to_json(one));
  return {{"operators", operators}, {"layers", layers}, {"not_compared", comparison.not_compared}};
}

void write_profiles(const std::filesystem::path& folder, const Comparison& comparison, const Origin& origin) {
  std::vector<ProfileRule> rules;
  for (const Difference& one : comparison.operators)
    rules.push_back(
        {one.operation.substr(one.operation.find("::") + 2), fmt::format("{{operator: '{}'}}", one.operation),
         fmt::format("noise to signal {:.3g}, {} calls", one.errors.noise_to_signal, one.calls), one.errors});
  const std::string title = fmt::format("{} as {} differs from it", origin.first, origin.second);
  if (write_profile_rules(folder, title, origin.model, type_name(origin.dtype), rules) == 0)
    throw UsageError(
        fmt::format("{} and {} gave the same numbers, but for single elements: there is nothing to re-create",
                    origin.first, origin.second));
}

}  // namespace faultline::diagnose
