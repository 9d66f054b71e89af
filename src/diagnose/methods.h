// The method `self`: no second machine, no statistics over layers. Each layer, and each operator inside it, is asked
// questions whose answers are known, to the bit or within a proven rounding bound; a machine that answers one of them
// wrongly is broken there. An intermittent fault is waited for: passes are repeated until one is caught or the budget
// ends, and the diagnosis says how frequent a fault would have been seen.
#pragma once

#include "diagnose/diagnosis.h"
#include "diagnose/known_answers.h"
#include "diagnose/recomputation.h"
#include "model/causal_lm.h"

namespace faultline::diagnose {

struct SelfOptions {
  at::Tensor tokens;  // (1, T) int64, a prompt
  uint64_t seed = 0;
  int64_t passes = 1;     // at most; the first that finds something ends it
  bool operators = true;  // also inside the layers
};

Diagnosis diagnose_self(const model::CausalLm& model, const std::map<site::PlaceId, KnownAnswers>& answers,
                        const SelfOptions& options);

// Rows for the relation "infinity": g(x) = x to the bit, because an update is below half an ulp of every element.
// (rows, hidden), every channel once among the largest of its row. fp16 has no room for it: undefined.
at::Tensor infinity_rows(int64_t hidden, at::ScalarType dtype, uint64_t seed);

// The method `shadow`: every operator call of a forward is recorded on the machine under test and recomputed in fp64 on
// another one. Each call is judged on the inputs that it really had, so an early fault does not accuse what follows it.

struct ShadowOptions {
  at::Tensor tokens;   // (B, T) int64
  int64_t passes = 1;  // at most; the first that finds something ends it
};

Diagnosis diagnose_shadow(const model::CausalLm& model, Recomputation& reference, const ShadowOptions& options);

// The method `classic`: six statistics of each layer's output under small changes of its input, and robust z-scores of
// them along depth. Kept as it was published (SRDD 8.0), for comparison: a layer that differs from its neighbours is
// accused, broken or not. As published each statistic runs its own whole forwards, 11 a layer. All of them can be had
// from one forward and re-executions of single layers on their cached inputs: the same scores on a machine that repeats
// itself; on one that does not, the layers behind the noise then get equal inputs and look quiet.

struct ClassicOptions {
  at::Tensor tokens;  // (1, T) int64
  uint64_t seed = 0;  // of the noise that is put in
  bool cached = true;
};

// The statistics are given; z-scores, score, kind and reasons are filled in.
std::vector<LayerScore> score_layers(std::vector<LayerScore> layers);
// (v - median) / (1.4826 max(MAD, 0.01 |median|, 1e-6)); bounded by 1e3, so that a spread of nearly nothing does not
// make a large number out of nothing. The bound is ours, all else as published.
std::vector<double> robust_z(const std::vector<double>& values);

Diagnosis diagnose_classic(const model::CausalLm& model, const ClassicOptions& options);

}  // namespace faultline::diagnose
