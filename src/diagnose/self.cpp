#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "diagnose/accusations.h"
#include "diagnose/methods.h"
#include "diagnose/operator_relations.h"
#include "diagnose/range.h"
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
    bias_ = model.config().attention_bias || model.config().output_bias || model.config().mlp_bias;
  }

  Diagnosis run();

 private:
  void pass(int64_t number);
  void bring_prompt();  // to every layer
  void search();        // operators that err now and then
  void probe_layer(int64_t layer);
  void probe_small(int64_t layer, const at::Tensor& x);
  void probe_half_block(int64_t layer, const at::Tensor& x);
  void probe_sum(int64_t layer, const at::Tensor& x);
  void note_replaced();
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
  std::vector<at::Tensor> inputs_, outputs_;  // of the layers, of the prompt, whatever it has become on the way
  std::vector<AskedRows> asked_;              // what it is asked about instead
  std::vector<bool> testable_;                // by layer
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

// A layer hands on what came in and what its halves add to it. Asked where infinity cannot be.
void SelfProbe::probe_sum(int64_t index, const at::Tensor& x) {
  const model::Layer& layer = model_.layers()[static_cast<std::size_t>(index)];
  at::Tensor sum = x;
  const auto add = [&](const at::Tensor& update) {
    const PlanPause pause;
    sum = at::add(sum, update);
  };
  {
    const site::Scope scope(layer.place);
    add(layer.update(layer.attention(layer.input_norm(sum), model_.whole_rows(rows_, x.size(0) / rows_), index)));
    const at::Tensor normed = layer.post_attention_norm(sum);
    add(layer.update(std::visit([&](const auto& mlp) { return mlp(normed); }, layer.mlp)));
  }
  layer_cost_.multiplications += static_cast<double>(x.size(0)) * weights_of(layer);
  observe({"the sum of its parts", "layer_output", layer.place, sum, run_layer(index, x, rows_)});
}

void SelfProbe::probe_layer(int64_t layer) {
  const auto at = static_cast<std::size_t>(layer);
  const site::PlaceId place = model_.layers()[at].place;
  const at::Tensor& x = asked_[at].rows;
  if (infinity_.defined()) {
    Observation observation{"infinity", "layer_output", place, infinity_, run_layer(layer, infinity_, 1)};
    observation.repetitions.push_back(run_layer(layer, infinity_, 1));
    observe(observation);
  } else {
    probe_sum(layer, x);
  }
  if (pass_ == 0) {
    probe_small(layer, x);
    if (!bias_) probe_half_block(layer, x);
    observe({kRepetition, "layer_output", place, outputs_[at], run_layer(layer, inputs_[at], rows_)});
  }
  if (options_.operators) operators_.probe_layer(layer, pass_ == 0 ? 1 : 0);
}

void SelfProbe::bring_prompt() {
  at::Tensor x = model_.embed(options_.tokens.reshape(-1));
  for (int64_t layer = 0; layer < std::ssize(model_.layers()); ++layer) {
    inputs_.push_back(x);
    x = run_layer(layer, x, rows_);
    outputs_.push_back(x);
    const PlanPause pause;
    asked_.push_back(asked_rows(inputs_.back(), options_.seed));
  }
}

// Rows of the prompt that are out of range where they arrive: made ones were asked about.
void SelfProbe::note_replaced() {
  std::vector<at::Tensor> replaced;
  for (const AskedRows& one : asked_) replaced.push_back(one.replaced);
  const at::Tensor counts = at::stack(replaced).to(at::kCPU);
  for (std::size_t i = 0; i < asked_.size(); ++i)
    accusations_.note_untested(model_.layers()[i].place, counts.const_data_ptr<int64_t>()[i] * model_.config().hidden);
}

void SelfProbe::pass(int64_t number) {
  pass_ = number;
  if (number == 0) bring_prompt();
  for (int64_t layer = 0; layer < std::ssize(testable_); ++layer)
    if (testable_[static_cast<std::size_t>(layer)]) probe_layer(layer);
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
  if (bias_)
    not_tested.push_back("linears with biases: g(0) is not 0, so absolute faults of a layer's output are not tested");
  if (model_.config().moe.experts > 0) not_tested.push_back("how a mixture's router and sum combine its experts");
  if (!answers_.contains(model_.head_linear().place)) not_tested.push_back("the head: its weights are not finite");
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
  if (!diagnosis.broken_off) {
    const PlanPause pause;
    note_replaced();
  }
  diagnosis.candidates = accusations_.candidates();
  diagnosis.relations = accusations_.relations();
  diagnosis.elements = accusations_.elements();
  diagnosis.untested = accusations_.untested();
  diagnosis.operator_calls = layer_cost_.calls + operators_.cost().calls;
  double forward = 0;
  for (const model::Layer& layer : model_.layers()) forward += weights_of(layer);
  forward *= static_cast<double>(options_.tokens.numel());
  diagnosis.layer_forwards = layer_cost_.multiplications / forward;
  diagnosis.forwards = diagnosis.layer_forwards + operators_.cost().multiplications / forward;
  if (!diagnosis.broken_off) {
    const PlanPause pause;
    say_limits(diagnosis);
    say_untested(diagnosis);
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
