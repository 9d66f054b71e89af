#include "aqn/norm_noise.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "numeric/gaussian.h"
#include "site/scope.h"

namespace faultline::aqn {
namespace {

constexpr const char* kReadByRouter = "post_attention_layernorm";
constexpr double kSmallestStrengthShare = 0.5, kLargestStrengthShare = 2;  // of measured to expected, for few elements

at::Tensor joined_on_cpu(const std::vector<at::Tensor>& weights) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& weight : weights) values.push_back(weight.detach().reshape(-1));
  return at::cat(values).cpu();
}

bool is_in(const std::vector<site::LayerRange>& layers, int64_t layer) {
  if (layers.empty()) return true;
  return std::any_of(layers.begin(), layers.end(),
                     [&](const site::LayerRange& range) { return range.first <= layer && layer <= range.last; });
}

int64_t layers_meant(const NormSelection& selection) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < selection.layer_count; ++layer) count += is_in(selection.layers, layer);
  return count;
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_meant(const std::string& path, std::string_view role, int64_t layer, const NormSelection& selection) {
  if (role != "rmsnorm" || !is_in(selection.layers, layer)) return false;
  const std::string name = last_name(path);
  return (selection.only.empty() || holds(selection.only, name)) && !holds(selection.except, name);
}

// A name that no norm has would be a setting that does nothing. present: of all norms of the model.
void check_norm_names(const NormSelection& selection, const std::set<std::string>& present) {
  for (const auto& [key, names] : {std::pair("norms", &selection.only), std::pair("except", &selection.except)})
    for (const std::string& name : *names)
      if (!present.contains(name))
        throw UsageError(fmt::format("aqn.{}: the model has no norm called '{}'; it has {}", key, name,
                                     present.empty() ? "none" : fmt::format("{}", fmt::join(present, ", "))));
}

[[noreturn]] void refuse_silence() {
  throw UsageError("aqn: not one RMSNorm weight is meant; a run without noise would be reported as one with it");
}

bool is_mixture(const std::vector<std::string>& paths) {
  return std::any_of(paths.begin(), paths.end(), [](const std::string& path) {
    return last_name(path) == "experts" || site::role_of_path(path) == "expert";
  });
}

// "model.layers" of "model.layers.3.input_layernorm"; "" of what belongs to no layer.
std::string stack_of(const std::string& path) {
  const int64_t layer = site::layer_of_path(path);
  return layer < 0 ? "" : path.substr(0, path.find(fmt::format(".{}.", layer)));
}

void check_one_stack(const std::vector<std::string>& norms) {
  std::string first;
  for (const std::string& norm : norms) {
    const std::string stack = stack_of(norm);
    if (stack.empty() || stack == first) continue;
    if (!first.empty())
      throw UsageError(
          fmt::format("aqn: the model has norms in two stacks of layers, {} and {}; which of them samples is not "
                      "known, so neither gets noise",
                      first, stack));
    first = stack;
  }
}

}  // namespace

NormSelection norm_selection(const AqnSpec& spec, bool is_mixture, int64_t layer_count) {
  if (spec.exclude_router_input && !is_mixture)
    throw UsageError("aqn.exclude_router_input: the model has no router; leave it out");
  NormSelection selection{spec.norms, spec.layers, layer_count, 0, spec.except};
  if (spec.exclude_router_input) selection.except.emplace_back(kReadByRouter);
  if (is_mixture && spec.norms.empty() && selection.except.empty()) selection.only.emplace_back(kReadByRouter);
  return selection;
}

void check_noise_layers(const std::vector<site::LayerRange>& layers, int64_t layer_count) {
  for (const site::LayerRange& range : layers) {
    if (range.first < 0 || range.last >= layer_count)
      throw UsageError(fmt::format("aqn.layers: {}-{} is named, but the model has layers 0 to {}", range.first,
                                   range.last, layer_count - 1));
  }
}

std::vector<NoiseTarget> select_norms(const std::vector<NoiseTarget>& parameters, const NormSelection& selection) {
  check_noise_layers(selection.layers, selection.layer_count);
  std::vector<NoiseTarget> chosen;
  std::set<std::string> present;
  int64_t in_layers = 0;
  for (const NoiseTarget& parameter : parameters) {
    const site::Place& place = site::place_of(parameter.place);
    if (place.role == "rmsnorm") present.insert(last_name(place.path));
    if (!is_meant(place.path, place.role, place.layer, selection)) continue;
    chosen.push_back(parameter);
    in_layers += place.layer >= 0;
  }
  check_norm_names(selection, present);
  if (chosen.empty()) refuse_silence();
  const int64_t per_layer = (selection.norm_count - 1) / selection.layer_count, layers = layers_meant(selection);
  FL_ASSERT(layers > 0 && in_layers % layers == 0);
  if (selection.only.empty() && selection.except.empty())
    FL_ASSERT(std::ssize(chosen) == layers * per_layer + (selection.layers.empty() ? 1 : 0));
  return chosen;
}

int64_t count_layers(const std::vector<std::string>& paths) {
  int64_t last = -1;
  for (const std::string& path : paths) last = std::max(last, site::layer_of_path(path));
  return last + 1;
}

std::vector<std::string> select_norms(const std::vector<std::string>& paths, const AqnSpec& spec) {
  const NormSelection selection = norm_selection(spec, is_mixture(paths), count_layers(paths));
  check_noise_layers(selection.layers, selection.layer_count);
  std::vector<std::string> chosen;
  std::set<std::string> present;
  std::set<int64_t> filled, noisy;  // layers that have modules here (not another pipeline stage), and meant norms
  for (const std::string& path : paths) {
    const int64_t layer = site::layer_of_path(path);
    const std::string role = site::role_of_path(path);
    if (role == "rmsnorm") present.insert(last_name(path));
    if (layer >= 0 && role != "layer" && is_in(selection.layers, layer)) filled.insert(layer);
    if (!is_meant(path, role, layer, selection)) continue;
    chosen.push_back(path);
    noisy.insert(layer);
  }
  check_norm_names(selection, present);
  if (chosen.empty()) refuse_silence();
  for (const int64_t layer : filled) {
    if (!noisy.contains(layer))
      throw UsageError(
          fmt::format("aqn: layer {} has no norm that is meant, and others have; this model is not known to "
                      "faultline",
                      layer));
  }
  check_one_stack(chosen);
  return chosen;
}

at::Tensor norm_deviates(uint64_t seed, int64_t step, const std::string& name, int64_t elements) {
  at::Tensor deviates = at::empty({elements}, at::kFloat);
  float* data = deviates.mutable_data_ptr<float>();
  const uint64_t key = mix64(mix64(seed, hash64(name)), static_cast<uint64_t>(step));
  for (int64_t i = 0; i < elements; i += 4) {
    const auto group = static_cast<uint64_t>(i) / 4;
    const PhiloxWords words =
        philox(static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), 0, 0x61716E00u, key);
    for (int64_t j = i; j < std::min(i + 4, elements); ++j)
      data[j] = numeric::gaussian32(words.word[j - i], numeric::kGaussian32);
  }
  return deviates;
}

void check_representable(const at::Tensor& weight, const std::string& name, double sigma, bool relative) {
  if (sigma == 0) return;
  const double digits = weight.scalar_type() == at::kBFloat16 ? 7 : weight.scalar_type() == at::kHalf ? 10 : 23;
  const double median = weight.detach().to(at::kFloat).abs().median().item<double>();
  if (median == 0) return;
  const double half_step = std::exp2(std::floor(std::log2(median)) - digits - 1);
  const double strength = relative ? sigma * median : sigma;
  if (strength < half_step)
    throw UsageError(
        fmt::format("aqn: sigma {:g} on {} ({}) is below half a step of its numbers, {:g}: rounding would "
                    "remove nearly all of it; use a larger sigma or fp32 weights",
                    sigma, name, c10::toString(weight.scalar_type()), half_step));
}

void check_weakest(const at::Tensor& weight, const std::string& name, const AqnSpec& spec, int64_t layer,
                   int64_t layer_count, int64_t total_steps) {
  double weakest = 0;
  for (int64_t step = 0; step < total_steps; ++step) {
    const double strength = strength_at(spec.schedule, step, total_steps) *
                            layer_multiplier(spec.schedule, layer, layer_count, step, total_steps);
    if (strength > 0 && (weakest == 0 || strength < weakest)) weakest = strength;
  }
  check_representable(weight, name, weakest, spec.relative());
}

int64_t strongest_step(const ScheduleSpec& schedule, const std::vector<int64_t>& layers, int64_t layer_count,
                       int64_t total_steps) {
  const auto energy = [&](int64_t step) {
    double sum = 0;
    for (const int64_t layer : layers) {
      const double factor = layer_multiplier(schedule, layer, layer_count, step, total_steps);
      sum += factor * factor;
    }
    return sum * std::pow(strength_at(schedule, step, total_steps), 2);
  };
  int64_t strongest = 0;
  double most = energy(0);
  for (int64_t step = 1; step < total_steps; ++step)
    if (const double here = energy(step); here > most) strongest = step, most = here;
  if (most == 0)
    throw UsageError(
        "aqn: strength and multipliers give noise of 0 at every step; a run without noise would be reported as noisy");
  return strongest;
}

NormNoise::NormNoise(AqnSpec spec, std::vector<NoiseTarget> targets, int64_t layer_count, uint64_t seed,
                     int64_t total_steps)
    : spec_(std::move(spec)),
      targets_(std::move(targets)),
      layer_count_(layer_count),
      total_steps_(total_steps),
      seed_(seed) {
  faultline::check(spec_.schedule);
  const at::NoGradGuard no_gradients;
  std::vector<int64_t> layers;
  for (const NoiseTarget& target : targets_) layers.push_back(site::place_of(target.place).layer);
  strongest_ = faultline::aqn::strongest_step(spec_.schedule, layers, layer_count_, total_steps_);
  for (const NoiseTarget& target : targets_) {
    if (target.weight->scalar_type() != at::kFloat)
      throw UsageError(fmt::format("aqn: {} is {}; norms must be kept in fp32 (bf16 rounds small noise away)",
                                   target.name, c10::toString(target.weight->scalar_type())));
    check_weakest(*target.weight, target.name, spec_, layers[noisy_.size()], layer_count_, total_steps_);
    noisy_.push_back(at::empty_like(*target.weight, at::MemoryFormat::Contiguous));
    site::register_parameter(noisy_.back(), target.place);
  }
}

double NormNoise::strength_of(const NoiseTarget& target, int64_t step) const {
  return strength_at(spec_.schedule, step, total_steps_) *
         layer_multiplier(spec_.schedule, site::place_of(target.place).layer, layer_count_, step, total_steps_);
}

NormNoise::~NormNoise() { restore(); }

at::Tensor NormNoise::carried_values() const {
  std::vector<at::Tensor> weights;
  for (const NoiseTarget& target : targets_) weights.push_back(*target.weight);
  return joined_on_cpu(weights);
}

// Note [Graphs read copies]: a decode step captured under a guard reads the copies' memory for ever. Were the clean
// weights in place at the first rollout (sigma 0, no guard), every later noise would be invisible to the graph
// (docs/lessons.md 6). So rollouts always run under a guard.
std::shared_ptr<void> NormNoise::apply(int64_t step) {
  FL_ASSERT(!active_);
  const at::NoGradGuard no_gradients;
  before_ = carried_values();  // clean still
  clean_.clear();
  std::vector<at::Tensor> scales;  // of the deviates
  int64_t first = 0;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const NoiseTarget& target = targets_[i];
    const at::Tensor clean = before_.narrow(0, first, target.weight->numel());
    first += clean.numel();
    const double strength = strength_of(target, step);
    scales.push_back(spec_.relative() ? clean.abs() * strength : at::full_like(clean, strength));
    const at::Tensor noisy =
        strength == 0 ? clean : clean + scales.back() * norm_deviates(seed_, step, target.name, clean.numel());
    noisy_[i].copy_(noisy.view(target.weight->sizes()));
    clean_.push_back(*target.weight);
    *target.weight = noisy_[i];
  }
  active_ = true;
  carried_ = carried_values();
  measure(step, scales);
  return {this, [](NormNoise* noise) { noise->restore(); }};
}

void NormNoise::measure(int64_t step, const std::vector<at::Tensor>& scales) {
  last_ = {.step = step, .sigma = strength_at(spec_.schedule, step, total_steps_), .elements = before_.numel()};
  double expected = 0, measured = 0;
  int64_t first = 0;
  for (const at::Tensor& scale : scales) {
    const at::Tensor clean = before_.narrow(0, first, scale.numel()), noisy = carried_.narrow(0, first, scale.numel());
    first += scale.numel();
    const double squares = scale.to(at::kDouble).square().sum().item<double>();
    ++(squares > 0 ? last_.weights : last_.silent);
    expected += squares;
    measured += (noisy.to(at::kDouble) - clean.to(at::kDouble)).square().sum().item<double>();
    last_.changed += noisy.ne(clean).sum().item<int64_t>();
  }
  last_.expected = std::sqrt(expected / static_cast<double>(last_.elements));
  last_.measured = std::sqrt(measured / static_cast<double>(last_.elements));
}

// Note [No random walk]: the clean weights were only set aside; whether anything wrote to them meanwhile is looked at,
// not assumed, and so is whether the noise was there to the end.
void NormNoise::restore() {
  if (!active_) return;
  intact_ = intact_ && joined_on_cpu(clean_).equal(before_);
  kept_ = kept_ && carried_values().equal(carried_);
  for (std::size_t i = 0; i < targets_.size(); ++i) *targets_[i].weight = clean_[i];
  clean_.clear();
  active_ = false;
}

void NormNoise::check() const {
  if (!intact_)
    throw EvidenceError(ComplaintCode::kWeightChanged, "aqn: a clean weight changed while its noisy copy was in use");
  if (!kept_)
    throw EvidenceError(ComplaintCode::kNoiseOverwritten,
                        "aqn: noisy weights were exchanged or written to while they were in use");
  const double share = last_.expected == 0 ? 1 : last_.measured / last_.expected;
  if (!(share > kSmallestStrengthShare && share < kLargestStrengthShare))
    throw EvidenceError(ComplaintCode::kNoiseStrength,
                        fmt::format("aqn: step {}: the schedule asks for noise of {:g}, the weights carry {:g}",
                                    last_.step, last_.expected, last_.measured));
}

std::string NormNoise::log_line() const {
  const double realised = last_.expected == 0 ? 0 : last_.sigma * last_.measured / last_.expected;
  return fmt::format("[aqn] applied noise to {} RMSNorm weights (skipped {}), sigma={:.4g}, realised={:.4g}",
                     last_.weights, last_.silent, last_.sigma, realised);
}

Json NormNoise::record() const {
  const double length = last_.measured * std::sqrt(static_cast<double>(last_.elements));  // of noisy - clean
  return {{"faultline/aqn/sigma", last_.sigma},
          {"faultline/aqn/expected", last_.expected},
          {"faultline/aqn/measured", last_.measured},
          {"faultline/aqn/delta_over_sigma", last_.sigma == 0 ? 0 : length / last_.sigma},
          {"faultline/aqn/weights", last_.weights},
          {"faultline/aqn/elements", last_.elements},
          {"faultline/aqn/changed", last_.changed}};
}

}  // namespace faultline::aqn
