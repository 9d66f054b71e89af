// Two machines, operator by operator: every call that a forward makes on the first is made again on the second with the
// same inputs, and the difference of their results is measured: share of equal bits, quantiles of the relative error,
// its mean. Errors do not add up through depth, because the inputs are always the first machine's. The calls may come
// from a trace; two traces are judged beside each other (divergence.h).
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "diagnose/compare/trace.h"
#include "model/causal_lm.h"

namespace faultline::diagnose {

struct Side {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;
};

struct Difference {
  std::string operation;  // "faultline::few_rows_linear"
  std::string family;     // of a rule: "matmul"; "": none
  int64_t layer = -1;     // -1: all of them together
  int64_t calls = 0, elements = 0;
  double share_equal = 0, mean = 0, rms = 0;         // relative error: mean is the bias
  std::vector<std::pair<double, double>> quantiles;  // (p, relative error), of the unequal ones
};

struct Comparison {
  std::vector<Difference> operators;  // all layers together, the worst first
  std::vector<Difference> layers;     // per operator and layer
  std::vector<std::string> not_compared;
};

// The model lives on the first side.
std::vector<RecordedCall> record_forward(const model::CausalLm& model, const at::Tensor& tokens);
void trace_forward(const model::CausalLm& model, const at::Tensor& tokens, TraceWriter& trace);
Comparison compare_sides(const std::vector<RecordedCall>& calls, const Side& second);
// The weights by Hugging Face's names, fused ones by their parts, as traces list them.
std::vector<NamedWeight> weights_of(model::CausalLm& model);

Json to_json(const Comparison& comparison);
// What the fault `profile` reads.
Json profile_json(const Difference& difference, at::ScalarType dtype);

}  // namespace faultline::diagnose
