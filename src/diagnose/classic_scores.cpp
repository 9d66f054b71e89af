// From six statistics of every layer to z-scores along depth, scores and reasons: the rules of the published script
// (SRDD 8.0), with its names. Noise and saturation are looked for where a statistic jumps from one layer to the next, a
// dead zone where the gain is low; the first jump is the source, and what follows it is called propagation.
#include <algorithm>
#include <cmath>
#include <utility>

#include "diagnose/methods.h"

namespace faultline::diagnose {
namespace {

constexpr double kLargestZ = 1e3;
constexpr std::size_t kBoundary = 2;  // layers at either end that saturation is not looked for in

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::vector<double> column(const std::vector<LayerScore>& layers, double LayerScore::* member) {
  std::vector<double> values;
  for (const LayerScore& layer : layers) values.push_back(std::isfinite(layer.*member) ? layer.*member : 0);
  return values;
}

void write(std::vector<LayerScore>& layers, double LayerScore::* member, const std::vector<double>& values) {
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].*member = values[i];
}

// Differences along depth.
std::vector<double> jumps(const std::vector<double>& values, double before) {
  std::vector<double> all;
  for (const double value : values) all.push_back(value - std::exchange(before, value));
  return all;
}
std::vector<double> drops(const std::vector<double>& values) {
  return jumps(values, values.empty() ? 0 : values.front());
}

bool inner(std::size_t layer, std::size_t layers) { return layer >= kBoundary && layer + kBoundary < layers; }

// z-scores of the inner layers among themselves; 0 at the boundary.
std::vector<double> inner_z(const std::vector<double>& values) {
  std::vector<double> some, all(values.size(), 0.0);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (inner(i, values.size())) some.push_back(values[i]);
  const std::vector<double> z = robust_z(some);
  std::copy(z.begin(), z.end(), all.begin() + static_cast<std::ptrdiff_t>(z.empty() ? 0 : kBoundary));
  return all;
}

void write_z_scores(std::vector<LayerScore>& layers) {
  const std::vector<double> instability = column(layers, &LayerScore::instability);
  write(layers, &LayerScore::z_instability, robust_z(instability));
  write(layers, &LayerScore::z_instability_jump, robust_z(jumps(instability, 0)));
  write(layers, &LayerScore::z_gain, robust_z(column(layers, &LayerScore::gain)));
  std::vector<double> logs;
  for (const double kurtosis : column(layers, &LayerScore::kurtosis))
    logs.push_back(std::log(std::max(kurtosis, 1e-4)));
  write(layers, &LayerScore::z_kurt, robust_z(logs));
  write(layers, &LayerScore::z_kurt_drop, robust_z(drops(logs)));
  const std::vector<double> max_gain = column(layers, &LayerScore::max_gain);
  write(layers, &LayerScore::z_max_gain, inner_z(max_gain));
  write(layers, &LayerScore::z_max_gain_drop, inner_z(drops(max_gain)));
  write(layers, &LayerScore::z_failure_jump, inner_z(jumps(column(layers, &LayerScore::failure_rate), 0)));
  write(layers, &LayerScore::z_pileup_jump, inner_z(jumps(column(layers, &LayerScore::pileup_ratio), 0)));
}

void add(LayerScore& layer, double score, const char* reason, const char* kind) {
  layer.score += score;
  layer.reasons.push_back(reason);
  if (layer.kind.empty()) layer.kind = kind;
}

// One statistic of the saturation family: its source, and what stands out behind it.
struct Saturation {
  bool (*jumped)(const LayerScore&);
  double (*propagated)(const LayerScore&);  // 0: it does not
  const char *source, *propagation;
  bool ends_inside;  // the source is looked for among inner layers only
};

const Saturation kSaturations[] = {
    {[](const LayerScore& l) { return l.z_kurt_drop < -2; },
     [](const LayerScore& l) { return l.z_kurt_drop < -5 ? 0.3 * -l.z_kurt_drop : 0; }, "SAT_SOURCE", "SAT_PROP",
     false},
    {[](const LayerScore& l) { return l.z_max_gain_drop < -2; },
     [](const LayerScore& l) { return l.z_max_gain < -3 ? 1.5 * -l.z_max_gain : 0; }, "SPARSE_SAT", "SPARSE_SAT_PROP",
     true},
    {[](const LayerScore& l) { return l.z_failure_jump > 2 && l.failure_rate > 0.001; },
     [](const LayerScore& l) { return l.failure_rate > 0.01 ? 500 * l.failure_rate : 0; }, "DISCRETE_SAT",
     "DISCRETE_PROP", true},
    {[](const LayerScore& l) { return l.z_pileup_jump > 2 && l.pileup_ratio > 2; },
     [](const LayerScore& l) { return l.pileup_ratio > 3 ? 10 * l.pileup_ratio : 0; }, "PILEUP_SAT", "PILEUP_PROP",
     true},
};

void add_saturation(std::vector<LayerScore>& layers, const Saturation& one) {
  bool found = false;
  for (std::size_t i = kBoundary; i < layers.size(); ++i) {
    const bool inside = inner(i, layers.size());
    const bool source = !found && (inside || !one.ends_inside) && one.jumped(layers[i]);
    found |= source;
    if (!inside) continue;
    if (source)
      add(layers[i], 100, one.source, "saturate");
    else if (const double score = one.propagated(layers[i]); score > 0)
      add(layers[i], score, one.propagation, "saturate");
  }
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

std::vector<LayerScore> score_layers(std::vector<LayerScore> layers) {
  write_z_scores(layers);
  bool noisy = false, dead = false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerScore& layer = layers[i];
    noisy |= layer.z_instability_jump > 2 && layer.instability > 0.1;
    dead |= layer.z_gain < -2;
  }
  bool source_found = false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerScore& layer = layers[i];
    if (!source_found && layer.z_instability_jump > 2 && layer.instability > 0.1) {
      source_found = true;
      add(layer, 1e9, "NOISE_SOURCE", "noise");
    } else if (noisy && layer.z_instability > 2) {
      add(layer, 10 + static_cast<double>(layers.size() - i), "NOISE_PROP", "noise");
    }
    if (layer.z_gain < -2) add(layer, 2 * -layer.z_gain, "DEAD_ZONE", "deadzone");
  }
  if (!noisy && !dead)
    for (const Saturation& one : kSaturations) add_saturation(layers, one);
  return layers;
}

}  // namespace faultline::diagnose
