// The method `self`: no second machine, no statistics over layers. Each layer, and each operator inside it, is asked
// questions whose answers are known, to the bit or within a proven rounding bound; a machine that answers one of them
// wrongly is broken there. An intermittent fault is waited for: passes are repeated until one is caught or the budget
// ends, and the diagnosis says how frequent a fault would have been seen.
#pragma once

#include "diagnose/diagnosis.h"
#include "diagnose/known_answers.h"

namespace faultline {

struct SelfOptions {
  at::Tensor tokens;  // (1, T) int64, a prompt
  uint64_t seed = 0;
  int64_t passes = 1;     // at most; the first that finds something ends it
  bool operators = true;  // also inside the layers
};

Diagnosis diagnose_self(const CausalLm& model, const std::map<PlaceId, KnownAnswers>& answers,
                        const SelfOptions& options);

// Rows for the relation "infinity": g(x) = x to the bit, because an update is below half an ulp of every element.
// (rows, hidden), every channel once among the largest of its row. fp16 has no room for it: undefined.
at::Tensor infinity_rows(int64_t hidden, at::ScalarType dtype, uint64_t seed);

}  // namespace faultline
