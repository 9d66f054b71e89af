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

// A rule that changes nothing in a forward like the recorded one fails its run.
constexpr double kFewestUnequal = 64;

// Note [A profile keeps the error's energy]
// Where a result is near zero, its relative error can be anything: an error of a sum of products has the size of what
// was added, not of what came out. Drawn as they are, such relative errors would strike large results too, and one in a
// million would outweigh all others. So an element's error counts with the weight x^2 / (sum of its row's x^2): a fault
// y = x (1 + e) with e drawn from that distribution makes of every row the measured ratio of error to signal,
// E[sum (e x)^2] = sum x^2 E[e^2]. Tails are followed to one in 2^20, doubling, and what interpolation between the
// knots adds is taken out again: the profile's second moment is the measured one.
std::vector<double> knots() {
  std::vector<double> low, all;
  for (int power = 20; power >= 3; --power) low.push_back(std::ldexp(1.0, -power));
  all.push_back(0);
  all.insert(all.end(), low.begin(), low.end());
  for (const double middle : {0.25, 0.375, 0.5, 0.625, 0.75}) all.push_back(middle);
  for (auto p = low.rbegin(); p != low.rend(); ++p) all.push_back(1 - *p);
  all.push_back(1);
  return all;
}

// E[e^2] of straight lines between the knots.
double second_moment(const std::vector<std::pair<double, double>>& quantiles) {
  double sum = 0;
  for (std::size_t i = 1; i < quantiles.size(); ++i) {
    const auto [p0, a] = quantiles[i - 1];
    const auto [p1, b] = quantiles[i];
    sum += (p1 - p0) * (a * a + a * b + b * b) / 3;
  }
  return sum;
}

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

// Of elements whose relative error is known: fp64, flat. Weights of a row add up to one.
struct Errors {
  at::Tensor relative, weight;
  double rows = 0;
};

struct Gathered {
  int64_t calls = 0;
  double rows = 0;
  std::vector<at::Tensor> errors, weights;

  Difference measured(const std::string& operation, int64_t layer) const {
    Difference difference;
    difference.operation = operation, difference.layer = layer, difference.calls = calls;
    difference.family = std::string(tap::family_of(operation));
    const at::Tensor all = at::cat(errors), weight = at::cat(weights), differs = all.ne(0);
    const at::Tensor unequal = all.masked_select(differs);
    difference.elements = all.numel();
    difference.share_equal = 1 - static_cast<double>(unequal.numel()) / static_cast<double>(all.numel());
    difference.mean = all.mean().item<double>();
    difference.rms = all.square().mean().sqrt().item<double>();
    if (unequal.numel() == 0) return difference;
    difference.worst = unequal.abs().max().item<double>();
    const double energy = all.square().mul_(weight).sum().item<double>() / rows;
    difference.noise_to_signal = std::sqrt(energy);
    const auto [sorted, order] = unequal.sort();
    const at::Tensor reached = weight.masked_select(differs).index_select(0, order).cumsum(0);
    const double share = reached[-1].item<double>() / rows;  // of the energy of a row that is not equal
    if (share == 0) return difference;
    difference.profile.share_equal = std::max(0.0, 1 - share);
    for (const double p : knots()) {
      const double within = std::clamp(p, 0x1p-21, 1 - 0x1p-21);
      const int64_t at = at::searchsorted(reached, within * reached[-1].item<double>()).item<int64_t>();
      difference.profile.quantiles.emplace_back(p, sorted[std::min(at, sorted.numel() - 1)].item<double>());
    }
    const double scale = std::sqrt(energy / share / second_moment(difference.profile.quantiles));
    for (auto& [p, error] : difference.profile.quantiles) error *= scale;
    return difference;
  }
};

Errors errors_of(const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor a = first.to(at::kDouble).reshape({-1, first.dim() == 0 ? 1 : first.size(-1)}).cpu();
  const at::Tensor b = second.to(first.scalar_type()).to(at::kDouble).reshape(a.sizes()).cpu();
  const at::Tensor known = a.isfinite().logical_and_(b.isfinite()).logical_and_(a.ne(0));
  const at::Tensor square = at::where(known, a.square(), 0.0), energy = square.sum(1, true);
  return {((b - a) / a).masked_select(known), (square / energy).masked_select(known),
          static_cast<double>(energy.gt(0).sum().item<int64_t>())};
}

struct Gathering {
  std::map<std::string, Gathered> whole;
  std::map<std::pair<std::string, int64_t>, Gathered> by_layer;

  void add(const RecordedCall& call, const at::Tensor& other) {
    if (other.numel() == 0) return;
    const Errors errors = errors_of(call.results[0], other);
    if (errors.relative.numel() == 0) return;
    for (Gathered* one : {&whole[call.name], &by_layer[{call.name, site::place_of(call.place).layer}]}) {
      ++one->calls, one->rows += errors.rows;
      one->errors.push_back(errors.relative), one->weights.push_back(errors.weight);
    }
  }

  Comparison measured(std::vector<std::string> not_compared) const {
    Comparison comparison;
    for (const auto& [name, one] : whole) comparison.operators.push_back(one.measured(name, -1));
    for (const auto& [key, one] : by_layer) comparison.layers.push_back(one.measured(key.first, key.second));
    std::stable_sort(comparison.operators.begin(), comparison.operators.end(),
                     [](const auto& a, const auto& b) { return a.noise_to_signal > b.noise_to_signal; });
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
          {"elements", difference.elements},
          {"share_equal", difference.share_equal},
          {"noise_to_signal", difference.noise_to_signal},
          {"mean", difference.mean},
          {"rms", difference.rms},
          {"worst", difference.worst}};
}

}  // namespace

Json to_json(const Comparison& comparison) {
  auto operators = Json::array(), layers = Json::array();
  for (const Difference& one : comparison.operators) operators.push_back(to_json(one));
  for (const Difference& one : comparison.layers) layers.push_back(to_json(one));
  return {{"operators", operators}, {"layers", layers}, {"not_compared", comparison.not_compared}};
}

namespace {

Json profile_json(const ErrorProfile& profile, at::ScalarType dtype) {
  auto quantiles = Json::array();
  for (const auto& [p, error] : profile.quantiles) quantiles.push_back({p, error});
  const char* name = dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp32";
  return {{"version", 1}, {"dtype", name}, {"share_equal", profile.share_equal}, {"quantiles", quantiles}};
}

}  // namespace

void write_profiles(const std::filesystem::path& folder, const Comparison& comparison, const Origin& origin) {
  std::filesystem::create_directories(folder);
  std::string recipe = fmt::format("# {} as {} differs from it\n", origin.first, origin.second);
  if (!origin.model.empty()) recipe += fmt::format("model: {}\n", origin.model);
  recipe += "faults:\n";
  int64_t rules = 0;
  for (const Difference& one : comparison.operators) {
    if (one.profile.quantiles.empty()) continue;
    const double unequal = static_cast<double>(one.elements) * (1 - one.share_equal);
    if (unequal < kFewestUnequal) {
      recipe += fmt::format("  # {}: {:.0f} of {} elements differ, too few to re-create\n", one.operation, unequal,
                            one.elements);
      continue;
    }
    const std::string name = one.operation.substr(one.operation.find("::") + 2);
    write_file_atomically(folder / (name + ".json"), profile_json(one.profile, origin.dtype).dump(2) + "\n");
    recipe += fmt::format(
        "  - name: {0}  # noise to signal {1:.3g}, {2} calls\n    where: {{operator: '{3}'}}\n"
        "    what: {{kind: profile, file: '{4}'}}\n",
        name, one.noise_to_signal, one.calls, one.operation, (folder / (name + ".json")).string());
    ++rules;
  }
  if (rules == 0)
    throw UsageError(
        fmt::format("{} and {} gave the same numbers, but for single elements: there is nothing to re-create",
                    origin.first, origin.second));
  write_file_atomically(folder / "recipe.yaml", recipe);
}

}  // namespace faultline::diagnose
