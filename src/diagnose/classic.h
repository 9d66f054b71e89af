// The method `classic`: six statistics of each layer's output under small changes of its input, and robust z-scores of
// them along depth. Kept as it was published, for comparison: a layer that differs from its neighbours is accused,
// broken or not. As published each statistic costs whole forwards, 11 a layer; all of them can be had from one forward
// and re-executions of single layers on their cached inputs, with the same scores.
#pragma once

#include "diagnose/diagnosis.h"
#include "model/causal_lm.h"

namespace faultline {

struct ClassicOptions {
  at::Tensor tokens;  // (1, T) int64
  uint64_t seed = 0;  // of the noise that is put in
  bool cached = true;
};

struct ClassicProbe {
  double instability = 0, gain = 0, kurtosis = 0, max_gain = 0, discrete = 0, pile_up = 0;
};
struct ClassicScore {
  ClassicProbe probe;
  double score = 0;
  std::string kind;  // "": nothing stands out
};

std::vector<ClassicScore> score_layers(const std::vector<ClassicProbe>& probes);
// (v - median) / (1.4826 max(MAD, 0.01 |median|, 1e-6)); bounded by 1e3, so that a spread of nearly nothing does not
// make a large number out of nothing.
std::vector<double> robust_z(const std::vector<double>& values);

Diagnosis diagnose_classic(const CausalLm& model, const ClassicOptions& options);

}  // namespace faultline
