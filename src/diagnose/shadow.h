// The method `shadow`: every operator call of a forward is recorded on the machine under test and recomputed in fp64 on
// another one. Each call is judged on the inputs that it really had, so an early fault does not accuse what follows it.
#pragma once

#include "diagnose/diagnosis.h"
#include "diagnose/recomputation.h"
#include "model/causal_lm.h"

namespace faultline {

struct ShadowOptions {
  at::Tensor tokens;   // (B, T) int64
  int64_t passes = 1;  // at most; the first that finds something ends it
};

Diagnosis diagnose_shadow(const CausalLm& model, Recomputation& reference, const ShadowOptions& options);

}  // namespace faultline
