#include "diagnose/classic.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "base/text.h"
#include "diagnose/observation.h"
#include "site/phase_guard.h"

namespace faultline {
namespace {

constexpr double kShift = 50, kNoise = 0.1, kLargestZ = 1e3;
constexpr int kRunsPerLayer = 11;
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

at::Tensor deviation(const at::Tensor& x) { return x.std(-1, /*unbiased=*/false); }

at::Tensor excess_kurtosis(const at::Tensor& x) {
  const at::Tensor centred = x - x.mean(-1, true);
  const at::Tensor variance = centred.square().mean(-1);
  return at::where(variance.eq(0), at::zeros_like(variance), centred.pow(4).mean(-1) / variance.square() - 3);
}

// How much fuller an outermost bin of a hundred is than the third and fourth beside it.
at::Tensor pile_up(const at::Tensor& x) {
  const at::Tensor low = x.amin(-1, true), high = x.amax(-1, true);
  const at::Tensor bin = ((x - low) / (high - low) * 100).nan_to_num(0).clamp(0, 99).to(at::kLong);
  const at::Tensor bins = at::zeros({x.size(0), 100}, x.options()).scatter_add(1, bin, at::ones_like(x));
  const auto side = [&](int64_t edge, int64_t third, int64_t fourth) {
    const at::Tensor inner = (bins.select(1, third) + bins.select(1, fourth)) / 2;
    return bins.select(1, edge) / inner.clamp_min(1);
  };
  const at::Tensor most = at::maximum(side(0, 2, 3), side(99, 97, 96));
  return at::where(high.gt(low).squeeze(1), most, at::zeros_like(most));
}

// What the five runs of some layers gave, one layer a row, (layers, elements) of fp64.
struct Runs {
  at::Tensor base, second, third, moved, shifted, noise;
};

std::vector<ClassicProbe> probes_of(const Runs& runs) {
  const at::Tensor shift = runs.shifted - runs.base;
  const at::Tensor middle = std::get<0>(shift.median(-1, true));
  const at::Tensor discrete =
      at::where(middle.abs().ge(5), shift.lt(0.85 * middle).to(at::kDouble).mean(-1, true), at::zeros_like(middle));
  const at::Tensor all =
      at::stack({(deviation(runs.second - runs.base) + deviation(runs.third - runs.base)) / 2,
                 deviation(runs.moved - runs.base) / deviation(runs.noise), excess_kurtosis(runs.base),
                 at::quantile(shift / kShift, 0.999, -1), discrete.squeeze(1), pile_up(runs.base)},
                1)
          .to(at::kCPU)
          .contiguous();
  std::vector<ClassicProbe> probes;
  for (int64_t i = 0; i < all.size(0); ++i) {
    const double* of = all.const_data_ptr<double>() + 6 * i;
    ClassicProbe probe;
    probe.instability = of[0], probe.gain = of[1], probe.kurtosis = of[2];
    probe.max_gain = of[3], probe.discrete = of[4], probe.pile_up = of[5];
    probes.push_back(probe);
  }
  return probes;
}

class ClassicRun {
 public:
  ClassicRun(const CausalLm& model, const ClassicOptions& options) : model_(model), options_(options) {}

  // Some layers at a time: on a GPU the device is waited for once for all of them.
  std::vector<ClassicProbe> probe() {
    std::vector<ClassicProbe> probes;
    const auto layers = std::ssize(model_.layers());
    const int64_t elements = options_.tokens.numel() * model_.config().hidden;
    const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / elements);
    for (int64_t first = 0; first < layers; first += at_once) {
      const std::vector<ClassicProbe> some = probe(first, std::min(first + at_once, layers));
      probes.insert(probes.end(), some.begin(), some.end());
    }
    return probes;
  }

  double forwards() const { return forwards_; }

 private:
  std::vector<ClassicProbe> probe(int64_t first, int64_t last) {
    std::array<std::vector<at::Tensor>, 6> rows;
    for (int64_t layer = first; layer < last; ++layer) {
      rows[0].push_back(output(layer, {}));
      rows[1].push_back(output(layer, {})), rows[2].push_back(output(layer, {}));
      const at::Tensor noise = noise_for(layer);
      rows[3].push_back(output(layer, noise)), rows[4].push_back(output(layer, at::full_like(noise, kShift)));
      rows[5].push_back(noise);
      if (!options_.cached) forwards_ += kRunsPerLayer - 5;  // as published every statistic runs its own clean forwards
    }
    const PlanPause pause;
    const auto all = [](const std::vector<at::Tensor>& some) { return at::stack(some).flatten(1); };
    return probes_of({all(rows[0]), all(rows[1]), all(rows[2]), all(rows[3]), all(rows[4]), all(rows[5])});
  }

  // The layer's output in fp64, `added` to its input.
  at::Tensor output(int64_t layer, const at::Tensor& added) {
    at::Tensor x = input_of(layer);
    if (added.defined()) {
      const PlanPause pause;
      x = (x.to(at::kDouble) + added).to(x.scalar_type());
    }
    const at::Tensor y = model_.run_layer(layer, x, 1);
    forwards_ += options_.cached ? 1.0 / static_cast<double>(model_.layers().size()) : 1;
    const PlanPause pause;
    return y.to(at::kDouble);
  }

  at::Tensor input_of(int64_t layer) {
    if (!options_.cached || inputs_.empty()) {
      inputs_ = {model_.embed(options_.tokens.reshape(-1))};
      const int64_t last = options_.cached ? std::ssize(model_.layers()) : layer;
      for (int64_t i = 0; i < last; ++i) inputs_.push_back(model_.run_layer(i, inputs_.back(), 1));
      forwards_ += options_.cached ? 1 : 0;
    }
    return inputs_[static_cast<std::size_t>(layer)];
  }

  at::Tensor noise_for(int64_t layer) {
    const at::Tensor x = input_of(layer);
    const PlanPause pause;
    at::Generator random = at::detail::createCPUGenerator(mix64(options_.seed, static_cast<uint64_t>(layer)));
    const at::Tensor normal = at::randn(x.sizes(), random, at::TensorOptions(at::kDouble)).to(x.device());
    return normal * (kNoise * x.to(at::kDouble).std(/*unbiased=*/false));
  }

  const CausalLm& model_;
  const ClassicOptions& options_;
  std::vector<at::Tensor> inputs_;
  double forwards_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::vector<double> column(const std::vector<ClassicProbe>& probes, double ClassicProbe::* member) {
  std::vector<double> values;
  for (const ClassicProbe& probe : probes) values.push_back(std::isfinite(probe.*member) ? probe.*member : 0);
  return values;
}

std::vector<double> edges(const std::vector<double>& values) {  // differences along depth
  std::vector<double> all = {0};
  for (std::size_t i = 1; i < values.size(); ++i) all.push_back(values[i] - values[i - 1]);
  return all;
}

}  // namespace

std::vector<double> robust_z(const std::vector<double>& values) {
  if (values.empty()) return {};
  const double middle = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - middle));
  const double spread = 1.4826 * std::max({median(distances), 0.01 * std::abs(middle), 1e-6});
  std::vector<double> z;
  for (const double value : values) z.push_back(std::clamp((value - middle) / spread, -kLargestZ, kLargestZ));
  return z;
}

std::vector<ClassicScore> score_layers(const std::vector<ClassicProbe>& probes) {
  const std::vector<double> instability = column(probes, &ClassicProbe::instability);
  std::vector<double> logs;
  for (const double k : column(probes, &ClassicProbe::kurtosis)) logs.push_back(std::log(std::max(k + 3, 1e-6)));
  const std::vector<double> z_noise = robust_z(edges(instability));
  const std::vector<double> z_gain = robust_z(column(probes, &ClassicProbe::gain));
  const std::vector<double> z_tails = robust_z(edges(logs));
  const std::vector<double> z_max = robust_z(column(probes, &ClassicProbe::max_gain));
  const std::vector<double> z_discrete = robust_z(column(probes, &ClassicProbe::discrete));
  const std::vector<double> z_pile = robust_z(column(probes, &ClassicProbe::pile_up));
  std::vector<ClassicScore> scores;
  bool noisy = false;  // the first edge wins: what follows a noise source is noisy too
  for (std::size_t i = 0; i < probes.size(); ++i) {
    ClassicScore one{probes[i], 0, ""};
    if (!noisy && z_noise[i] > 2 && probes[i].instability > 0.1) noisy = true, one.score += 1e9, one.kind = "noise";
    if (z_gain[i] < -2) one.score += 2 * std::abs(z_gain[i]), one.kind = one.kind.empty() ? "deadzone" : one.kind;
    const bool boundary = i < 2 || i + 2 >= probes.size();
    const int saturated = (i >= 2 && z_tails[i] < -2) + (z_max[i] < -2) +
                          (z_discrete[i] > 2 && probes[i].discrete > 0.001) + (z_pile[i] > 2 && probes[i].pile_up > 2);
    if (!boundary && saturated > 0) one.score += 100 * saturated, one.kind = one.kind.empty() ? "saturate" : one.kind;
    scores.push_back(std::move(one));
  }
  return scores;
}

Diagnosis diagnose_classic(const CausalLm& model, const ClassicOptions& options) {
  const at::NoGradGuard no_gradients;
  const PhaseGuard phase(Phase::kDiagnose);
  const auto start = std::chrono::steady_clock::now();
  ClassicRun run(model, options);
  const std::vector<ClassicProbe> probes = run.probe();
  const std::vector<ClassicScore> scores = score_layers(probes);
  Diagnosis diagnosis;
  diagnosis.method = "classic";
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i].score == 0) continue;
    Candidate candidate;
    candidate.layer = static_cast<int64_t>(i);
    candidate.place = place_of(model.layers()[i].place).path;
    candidate.operation = "layer_output";
    candidate.kind = scores[i].kind;
    candidate.score = scores[i].score;
    candidate.certainty = Certainty::kStatistical;
    diagnosis.candidates.push_back(std::move(candidate));
  }
  std::stable_sort(diagnosis.candidates.begin(), diagnosis.candidates.end(),
                   [](const auto& a, const auto& b) { return a.score > b.score; });
  diagnosis.relations = std::ssize(probes) * 6;
  diagnosis.forwards = diagnosis.layer_forwards = run.forwards();
  diagnosis.not_excluded.push_back("anything: a score compares layers with each other and has no error rate");
  if (model.layers().size() < 5)
    diagnosis.not_tested.push_back("fewer than five layers: there are no neighbours to compare with");
  diagnosis.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return diagnosis;
}

}  // namespace faultline
