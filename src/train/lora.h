// LoRA: low-rank adapters on chosen linears, trained in place of the model's weights. The second factor starts at zero,
// so an adapted model begins as the model itself. Adapters sit on linears as the model has them: q, k and v share one.
#pragma once

#include <string>
#include <vector>

#include "model/causal_lm.h"

namespace faultline {

struct LoraSpec {
  int64_t rank = 0;  // 0: none, all weights are trained
  double alpha = 16;
  std::vector<std::string>
      targets;  // last names of linears: qkv_proj, o_proj, gate_up_proj, down_proj; empty: all four
};

// Adds adapters and returns them as parameters, in the model's order. UsageError where a target names no linear.
std::vector<CausalLm::Parameter> add_lora(CausalLm& model, const LoraSpec& spec, uint64_t seed);
// weight + scale * up * down, rounded once; the adapters are gone afterwards.
void merge_lora(CausalLm& model);

}  // namespace faultline
