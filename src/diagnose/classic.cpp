#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>

#include "base/text.h"
#include "diagnose/methods.h"
#include "diagnose/observation.h"
#include "site/scope.h"

namespace faultline::diagnose {
namespace {

constexpr double kShift = 50, kNoise = 0.1, kStuck = 0.85, kUnresponsive = 0.1;
constexpr double kLeastNoise = 1e-9, kLeastSpread = 1e-6;
constexpr int64_t kBins = 100, kFewestElements = 100;
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

// What is run for each layer, as published: every statistic has clean forwards of its own. kNoiseItself is no run but
// what was added to the input of kNoisy.
enum Run : std::size_t {
  kFirst,
  kSecond,
  kThird,
  kBeforeNoise,
  kNoisy,
  kShape,
  kBeforeShift,
  kShifted,
  kBeforeCount,
  kCounted,
  kHistogram,
  kNoiseItself,
  kRuns
};
using Runs = std::array<at::Tensor, kRuns>;  // (layers, elements), in the model's type

// Differences are taken in the model's type and widened afterwards, as published.
at::Tensor spread(const at::Tensor& x) { return x.to(at::kDouble).std(-1, /*unbiased=*/true); }

at::Tensor gain(const Runs& runs) {
  const at::Tensor put_in = spread(runs[kNoiseItself]), came_out = spread(runs[kNoisy] - runs[kBeforeNoise]);
  return at::where(put_in.gt(kLeastNoise), came_out / put_in, at::zeros_like(put_in));
}

at::Tensor excess_kurtosis(const at::Tensor& narrow) {
  const at::Tensor x = narrow.to(at::kDouble);
  const at::Tensor centred = x - x.mean(-1, true);
  const at::Tensor variance = centred.square().mean(-1);
  return at::where(variance.eq(0), at::zeros_like(variance), centred.pow(4).mean(-1) / variance.square() - 3);
}

at::Tensor max_gain(const Runs& runs) {
  return at::quantile(((runs[kShifted] - runs[kBeforeShift]) / kShift).to(at::kDouble), 0.999, -1);
}

// The share of elements that moved by clearly less than the median one; 0 where that one hardly moved.
at::Tensor failure_rate(const Runs& runs) {
  const at::Tensor shift = (runs[kCounted] - runs[kBeforeCount]).to(at::kFloat);
  const at::Tensor middle = std::get<0>(shift.median(-1, true)).to(at::kDouble);
  const at::Tensor rate = shift.lt((kStuck * middle).to(at::kFloat)).to(at::kDouble).mean(-1);
  return at::where(middle.squeeze(1).abs().lt(kShift * kUnresponsive), at::zeros_like(rate), rate);
}

// How much fuller an outermost bin is than the third and fourth beside it. Edges are those of numpy.histogram, in fp32.
at::Tensor pileup_ratio(const at::Tensor& narrow) {
  const at::Tensor x = narrow.to(at::kFloat);
  const at::Tensor low = x.amin(-1, true), high = x.amax(-1, true);
  const at::Tensor edges = at::arange(kBins, x.options()) * ((high - low) / kBins) + low;  // (layers, bins), lower ones
  const at::Tensor bin = at::searchsorted(edges, x, /*out_int32=*/false, /*right=*/true).sub(1).clamp(0, kBins - 1);
  const at::TensorOptions wide = x.options().dtype(at::kDouble);
  const at::Tensor bins =
      at::zeros({x.size(0), kBins}, wide).scatter_add(1, bin, at::ones({x.size(0), x.size(1)}, wide));
  const auto side = [&](int64_t edge, int64_t third, int64_t fourth) {
    return bins.select(1, edge) / ((bins.select(1, third) + bins.select(1, fourth)) / 2).clamp_min(1);
  };
  const at::Tensor most = at::maximum(side(0, 2, 3), side(kBins - 1, kBins - 3, kBins - 4));
  const at::Tensor judged = x.to(at::kDouble).std(-1, /*unbiased=*/false).ge(kLeastSpread);
  return x.size(1) < kFewestElements ? at::zeros_like(most) : at::where(judged, most, at::zeros_like(most));
}

std::vector<LayerScore> statistics_of(const Runs& runs) {
  const at::Tensor all =
      at::stack({(spread(runs[kSecond] - runs[kFirst]) + spread(runs[kThird] - runs[kFirst])) / 2, gain(runs),
                 excess_kurtosis(runs[kShape]), max_gain(runs), failure_rate(runs), pileup_ratio(runs[kHistogram])},
                1)
          .to(at::kCPU)
          .contiguous();
  std::vector<LayerScore> layers(static_cast<std::size_t>(all.size(0)));
  const double* of = all.const_data_ptr<double>();
  for (LayerScore& layer : layers) {
    layer.instability = of[0], layer.gain = of[1], layer.kurtosis = of[2];
    layer.max_gain = of[3], layer.failure_rate = of[4], layer.pileup_ratio = of[5];
    of += 6;
  }
  return layers;
}

using Change = std::function<at::Tensor(const at::Tensor&)>;

class ClassicRun {
 public:
  ClassicRun(const model::CausalLm& model, const ClassicOptions& options) : model_(model), options_(options) {}

  // Some layers at a time: on a GPU the device is waited for once for all of them.
  std::vector<LayerScore> measure() {
    std::vector<LayerScore> scores;
    const auto layers = std::ssize(model_.layers());
    const int64_t elements = options_.tokens.numel() * model_.config().hidden;
    const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / elements);
    for (int64_t first = 0; first < layers; first += at_once) {
      const std::vector<LayerScore> some = measure(first, std::min(first + at_once, layers));
      scores.insert(scores.end(), some.begin(), some.end());
    }
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i].noise_seed = noise_seed(static_cast<int64_t>(i));
    return scores;
  }

  double forwards() const { return forwards_; }

 private:
  std::vector<LayerScore> measure(int64_t first, int64_t last) {
    std::array<std::vector<at::Tensor>, kRuns> rows;
    for (int64_t layer = first; layer < last; ++layer) {
      const Runs runs = options_.cached ? few_runs(layer) : published_runs(layer);
      for (std::size_t i = 0; i < kRuns; ++i) rows[i].push_back(runs[i]);
    }
    const PlanPause pause;
    Runs all;
    for (std::size_t i = 0; i < kRuns; ++i) all[i] = at::stack(rows[i]).flatten(1);
    return statistics_of(all);
  }

  Runs published_runs(int64_t layer) {
    Runs runs;
    for (const Run run : {kFirst, kSecond, kThird, kBeforeNoise}) runs[run] = output(layer);
    runs[kNoisy] = output(layer, noise_for(layer, runs[kNoiseItself]));
    for (const Run run : {kShape, kBeforeShift}) runs[run] = output(layer);
    runs[kShifted] = output(layer, shifted);
    runs[kBeforeCount] = output(layer);
    runs[kCounted] = output(layer, shifted);
    runs[kHistogram] = output(layer);
    return runs;
  }

  Runs few_runs(int64_t layer) {
    Runs runs;
    const at::Tensor clean = output(layer);
    for (const Run run : {kFirst, kBeforeNoise, kShape, kBeforeShift, kBeforeCount, kHistogram}) runs[run] = clean;
    runs[kSecond] = output(layer), runs[kThird] = output(layer);
    runs[kNoisy] = output(layer, noise_for(layer, runs[kNoiseItself]));
    runs[kShifted] = runs[kCounted] = output(layer, shifted);
    return runs;
  }

  // The layer's output, after a change of its input.
  at::Tensor output(int64_t layer, const Change& change = {}) {
    const auto layers = std::ssize(model_.layers());
    const auto changed = [&](const at::Tensor& x) {
      const PlanPause pause;
      return change ? change(x) : x;
    };
    if (options_.cached) {
      forwards_ += 1.0 / static_cast<double>(layers);
      return model_.run_layer(layer, changed(cached_input_of(layer)), 1);
    }
    at::Tensor x = model_.embed(options_.tokens.reshape(-1)), kept;
    for (int64_t i = 0; i < layers; ++i) {  // to the last layer: a fault that acts by chance sees every forward
      x = model_.run_layer(i, i == layer ? changed(x) : x, 1);
      if (i == layer) kept = x.clone();
    }
    forwards_ += 1;
    return kept;
  }

  const at::Tensor& cached_input_of(int64_t layer) {
    if (inputs_.empty()) {
      inputs_ = {model_.embed(options_.tokens.reshape(-1))};
      for (int64_t i = 0; i < std::ssize(model_.layers()); ++i)
        inputs_.push_back(model_.run_layer(i, inputs_.back(), 1));
      forwards_ += 1;
    }
    return inputs_[static_cast<std::size_t>(layer)];
  }

  static at::Tensor shifted(const at::Tensor& x) { return x + kShift; }

  uint64_t noise_seed(int64_t layer) const { return mix64(options_.seed, static_cast<uint64_t>(layer)); }

  Change noise_for(int64_t layer, at::Tensor& kept) const {
    return [this, layer, &kept](const at::Tensor& x) {
      at::Generator random = at::detail::createCPUGenerator(noise_seed(layer));
      const at::TensorOptions options = at::TensorOptions(x.scalar_type());
      kept = at::randn(x.sizes(), random, options).to(x.device()) * kNoise * x.std();
      return x + kept;
    };
  }

  const model::CausalLm& model_;
  const ClassicOptions& options_;
  std::vector<at::Tensor> inputs_;
  double forwards_ = 0;
};

}  // namespace

Diagnosis diagnose_classic(const model::CausalLm& model, const ClassicOptions& options) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kDiagnose);
  const auto start = std::chrono::steady_clock::now();
  ClassicRun run(model, options);
  Diagnosis diagnosis;
  diagnosis.method = "classic";
  diagnosis.layers = score_layers(run.measure());
  const std::vector<LayerScore>& scores = diagnosis.layers;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i].score == 0) continue;
    Candidate candidate;
    candidate.layer = static_cast<int64_t>(i);
    candidate.place = site::place_of(model.layers()[i].place).path;
    candidate.operation = "layer_output";
    candidate.kind = scores[i].kind;
    candidate.detail = fmt::format("{}", fmt::join(scores[i].reasons, ", "));
    candidate.score = scores[i].score;
    candidate.certainty = Certainty::kStatistical;
    diagnosis.candidates.push_back(std::move(candidate));
  }
  std::stable_sort(diagnosis.candidates.begin(), diagnosis.candidates.end(),
                   [](const auto& a, const auto& b) { return a.score > b.score; });
  diagnosis.relations = std::ssize(scores) * 6;
  diagnosis.forwards = diagnosis.layer_forwards = run.forwards();
  diagnosis.not_excluded.push_back("anything: a score compares layers with each other and has no error rate");
  if (model.layers().size() < 5)
    diagnosis.not_tested.push_back("fewer than five layers: there are no neighbours to compare with");
  diagnosis.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return diagnosis;
}

}  // namespace faultline::diagnose
