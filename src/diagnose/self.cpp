#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "diagnose/accusations.h"
#include "diagnose/methods.h"
#include "diagnose/operator_relations.h"
#include "site/scope.h"
#include "site/torch_support.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kInfinityRows = 16;
constexpr int kSearches = 32;

class SelfProbe {
 public:
  SelfProbe(const model::CausalLm& model, const std::map<site::PlaceId, KnownAnswers>& answers,
            const SelfOptions& options)
      : model_(model),
        answers_(answers),
        options_(options),
        dtype_(model.options().dtype().toScalarType()),
        operators_(model, answers, options.seed, [this](Observation one) { observe(std::move(one)); }) {
    const PlanPause pause;
    const at::Tensor rows = infinity_rows(model.config().hidden, dtype_, options.seed);
    if (rows.defined()) infinity_ = rows.to(model.device());
    for (const model::Layer& layer : model.layers()) testable_.push_back(is_testable(layer));
    rows_ = options.tokens.dim() == 2 ? options.tokens.size(0) : 1;
    bias_ = model.config().attention_bias || model.config().output_bias;
  }

  Diagnosis run();

 private:
  void pass(int64_t number);
  std::vector<at::Tensor> prompt_at_layers();  // what the prompt brings to each layer; undefined: not finite
  void search();                               // operators that err now and then
  void probe_layer(int64_t layer, const at::Tensor& x);
  void probe_small(int64_t layer, const at::Tensor& x);
  void probe_half_block(int64_t layer, const at::Tensor& x);
  void say_limits(Diagnosis& diagnosis) const;
  void observe(Observation observation) { accusations_.add(std::move(observation), pass_); }
  at::Tensor run_layer(int64_t layer, const at::Tensor& x, int64_t rows);
  bool is_testable(const model::Layer& layer) const;  // its weights are finite, so that answers are known

  const model::CausalLm& model_;
  const std::map<site::PlaceId, KnownAnswers>& answers_;
  const SelfOptions& options_;
  at::ScalarType dtype_;
  at::Tensor infinity_;
  bool bias_ = false;
  int64_t pass_ = 0, rows_ = 1;
  Accusations accusations_;
  Cost layer_cost_;
  OperatorProbe operators_;
  std::vector<at::Tensor> outputs_;  // of the layers, of the prompt
  std::vector<bool> testable_;       // by layer
  std::vector<int64_t> not_finite_;  // layers whose input was not finite
};

double weights_of(const model::Layer& layer) {
  double sum = 0;
  for (const model::Linear* linear : linears_of(layer)) sum += static_cast<double>(linear->weight.numel());
  return sum;
}

bool SelfProbe::is_testable(const model::Layer& layer) const {
  const auto known = [&](const auto* one) { return answers_.contains(one->place); };
  return std::ranges::all_of(linears_of(layer), known) && std::ranges::all_of(norms_of(layer), known);
}

at::Tensor SelfProbe::run_layer(int64_t layer, const at::Tensor& x, int64_t rows) {
  ++layer_cost_.calls;
  layer_cost_.multiplications +=
      static_cast<double>(x.size(0)) * weights_of(model_.layers()[static_cast<std::size_t>(layer)]);
  return model_.run_layer(layer, x, rows);
}

// g(0) = 0, and g(2^-90 x) is almost 0 but not exactly: what a layer adds of its own accord, or swallows, is seen.
void SelfProbe::probe_small(int64_t layer, const at::Tensor& x) {
  const site::PlaceId place = model_.layers()[static_cast<std::size_t>(layer)].place;
  if (bias_) return;
  const at::Tensor nothing = at::zeros_like(x);
  observe({"zero", "layer_output", place, nothing, run_layer(layer, nothing, rows_)});
  if (dtype_ == at::kHalf) return;
  at::Tensor small, tolerance;
  {
    const PlanPause pause;
    small = x * kTiny;
    tolerance = at::full_like(nothing, kTinyBound, at::kFloat);
  }
  const at::Tensor y = run_layer(layer, small, rows_);
  observe({"tiny", "layer_output", place, at::zeros_like(nothing, at::kFloat), y, tolerance});
  // Swallowed: a column that is zero wherever something went in. Zeros by chance are rare and stand alone.
  const PlanPause pause;
  const at::Tensor lost = y.eq(0).logical_and(small.ne(0));
  at::Tensor swallows = lost.to(at::kDouble).mean().gt(0.02);
  if (x.size(0) >= 8) swallows = swallows.logical_or(lost.sum(0).max().gt(x.size(0) / 2));
  observe({"tiny, not zero", "layer_output", place, at::where(lost.logical_and(swallows), small, y), y});
}

// h = x + attention(norm(x)) at two scales: h2 - a2 x = h1 - a1 x within rounding, once epsilon is negligible.
void SelfProbe::probe_half_block(int64_t index, const at::Tensor& x) {
  const model::Layer& layer = model_.layers()[static_cast<std::size_t>(index)];
  const bool half = dtype_ == at::kHalf;
  const double first = half ? 0x1p11 : 0x1p12;
  const site::Scope scope(layer.place);
  at::Tensor base = x;
  if (half) {
    const PlanPause pause;
    at::Generator random = at::detail::createCPUGenerator(options_.seed);
    base = at::randn(x.sizes(), random, at::TensorOptions(at::kFloat)).clamp(-4, 4).to(x.options());
  }
  const auto scaled = [&](double factor) {
    at::Tensor input;
    {
      const PlanPause pause;
      input = base * factor;
    }
    ++layer_cost_.calls;
    for (const model::Linear* linear : {&layer.attention.qkv, &layer.attention.output})
      layer_cost_.multiplications += static_cast<double>(x.size(0)) * static_cast<double>(linear->weight.numel());
    const model::AttentionContext context = model_.whole_rows(rows_, x.size(0) / rows_);
    const at::Tensor update = layer.attention(layer.input_norm(input), context, index);
    const PlanPause pause;
    return std::pair(at::add(input, update).to(at::kDouble), base.to(at::kDouble) * factor);
  };
  const auto [h1, x1] = scaled(first);
  const auto [h2, x2] = scaled(2 * first);
  const PlanPause pause;
  const double unit = std::ldexp(1.0, -mantissa_bits(dtype_) - 1);
  // Each sum is rounded once; the updates themselves are equal up to what epsilon still does.
  const at::Tensor tolerance = 1.0001 * unit * (h1.abs() + h2.abs()) + unit * ((h1 - x1).abs() + 1e-12);
  observe({"half-block pair", "module", layer.attention.place, h1 - x1, h2 - x2, tolerance});
}

void SelfProbe::probe_layer(int64_t layer, const at::Tensor& x) {
  const site::PlaceId place = model_.layers()[static_cast<std::size_t>(layer)].place;
  if (infinity_.defined()) {
    Observation observation{"infinity", "layer_output", place, infinity_, run_layer(layer, infinity_, 1)};
    observation.repetitions.push_back(run_layer(layer, infinity_, 1));
    observe(observation);
  }
  if (pass_ == 0 && x.defined()) {
    probe_small(layer, x);
    if (!bias_) probe_half_block(layer, x);
  }
  if (options_.operators) operators_.probe_layer(layer, pass_ == 0 ? 1 : 0);
}

std::vector<at::Tensor> SelfProbe::prompt_at_layers() {
  std::vector<at::Tensor> inputs, finite;
  at::Tensor x = model_.embed(options_.tokens.reshape(-1));
  for (int64_t layer = 0; layer < std::ssize(model_.layers()); ++layer) {
    inputs.push_back(x);
    x = run_layer(layer, x, rows_);
    const PlanPause pause;
    finite.push_back(inputs.back().isfinite().all());
  }
  const PlanPause pause;
  const at::Tensor flags = at::stack(finite).to(at::kCPU);  // the device is waited for once
  for (int64_t layer = 0; layer < std::ssize(inputs); ++layer) {
    const at::Tensor& y = layer + 1 < std::ssize(inputs) ? inputs[static_cast<std::size_t>(layer + 1)] : x;
    if (flags[layer].item<bool>()) {
      outputs_.push_back(y);
      continue;
    }
    not_finite_.push_back(layer);
    inputs[static_cast<std::size_t>(layer)] = at::Tensor();
    outputs_.push_back({});
  }
  return inputs;
}

void SelfProbe::pass(int64_t number) {
  pass_ = number;
  std::vector<at::Tensor> inputs(model_.layers().size());
  if (number == 0) inputs = prompt_at_layers();
  for (int64_t layer = 0; layer < std::ssize(inputs); ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    if (!testable_[at]) continue;
    probe_layer(layer, inputs[at]);
    if (inputs[at].defined())
      observe(
          {kRepetition, "layer_output", model_.layers()[at].place, outputs_[at], run_layer(layer, inputs[at], rows_)});
  }
  if (options_.operators) {
    operators_.probe_ends();
    search();
  }
  accusations_.settle();
}

// A layer or module that was caught by chance holds an operator that may be caught, too: it is asked again, alone.
void SelfProbe::search() {
  for (int i = 0; i < kSearches; ++i) {
    const std::vector<int64_t> layers = accusations_.layers_to_search();
    if (layers.empty()) return;
    for (const int64_t layer : layers) operators_.probe_layer(layer, 1);
  }
}

void SelfProbe::say_limits(Diagnosis& diagnosis) const {
  auto& not_tested = diagnosis.not_tested;
  if (!infinity_.defined())
    not_tested.push_back("fp16 has no range for the relation infinity: gains and offsets of a layer's output");
  if (bias_)
    not_tested.push_back("linears with biases: g(0) is not 0, so absolute faults of a layer's output are not tested");
  if (model_.config().moe.experts > 0) not_tested.push_back("how a mixture's router and sum combine its experts");
  if (!model_.config().tied_output) not_tested.push_back("the embedding and the head, which are not tied");
  if (!not_finite_.empty())
    not_tested.push_back(
        fmt::format("layers {} to {}: what the prompt brings there is not finite, so only made inputs "
                    "were tried",
                    not_finite_.front(), not_finite_.back()));
  if (!options_.operators) not_tested.push_back("operators inside the layers");
  for (std::size_t i = 0; i < testable_.size(); ++i) {
    if (!testable_[i]) not_tested.push_back(fmt::format("layer {}: its weights are not finite", i));
    for (const model::Linear* linear : linears_of(model_.layers()[i]))
      if (linear->adapter.down.defined())
        not_tested.push_back(fmt::format("{}: it carries an adapter", site::place_of(linear->place).path));
  }
  if (!diagnosis.fault_found())
    diagnosis.not_excluded.push_back(fmt::format("a fault that acts in less than {:.2g} of the calls (95 %)",
                                                 1 - std::pow(0.05, 1.0 / static_cast<double>(2 * diagnosis.passes))));
}

Diagnosis SelfProbe::run() {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kDiagnose);
  const auto start = std::chrono::steady_clock::now();
  Diagnosis diagnosis;
  diagnosis.method = "self";
  int64_t passes = 0;
  try {
    for (; passes < options_.passes && !accusations_.any(); ++passes) pass(passes);
  } catch (const site::UsageThroughTorch&) {  // of the planted fault, not of the machine
    throw;
  } catch (const c10::Error& error) {
    diagnosis.broken_off = true;
    accusations_.settle_what_can_be();
    diagnosis.not_tested.push_back(
        fmt::format("the machine failed in the middle, after {} relations; what was not asked by then: {}",
                    accusations_.relations(), error.what_without_backtrace()));
  }
  diagnosis.passes = passes;
  diagnosis.candidates = accusations_.candidates();
  diagnosis.relations = accusations_.relations();
  diagnosis.elements = accusations_.elements();
  diagnosis.operator_calls = layer_cost_.calls + operators_.cost().calls;
  double forward = 0;
  for (const model::Layer& layer : model_.layers()) forward += weights_of(layer);
  forward *= static_cast<double>(options_.tokens.numel());
  diagnosis.layer_forwards = layer_cost_.multiplications / forward;
  diagnosis.forwards = diagnosis.layer_forwards + operators_.cost().multiplications / forward;
  if (!diagnosis.broken_off) {
    const PlanPause pause;
    say_limits(diagnosis);
  }
  diagnosis.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return diagnosis;
}

}  // namespace

at::Tensor infinity_rows(int64_t hidden, at::ScalarType dtype, uint64_t seed) {
  if (dtype == at::kHalf) return {};
  at::Generator random = at::detail::createCPUGenerator(seed);
  const auto options = at::TensorOptions(at::kDouble);
  const double octaves = dtype == at::kFloat ? 16 : 32;
  at::Tensor rows = at::exp2(57 - octaves * at::rand({kInfinityRows, hidden}, random, options));
  const at::Tensor channel = at::arange(hidden, at::kLong);
  rows.index_put_({channel % kInfinityRows, channel}, at::full({hidden}, 1.98 * 0x1p57, options));
  const at::Tensor sign = at::randint(0, 2, {kInfinityRows, hidden}, random, options) * 2 - 1;
  return (rows * sign).to(dtype);
}

Diagnosis diagnose_self(const model::CausalLm& model, const std::map<site::PlaceId, KnownAnswers>& answers,
                        const SelfOptions& options) {
  return SelfProbe(model, answers, options).run();
}

}  // namespace faultline::diagnose
