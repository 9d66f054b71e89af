// Two machines, operator by operator: every call that a forward makes on the first is made again on the second with the
// same inputs, and the difference of their results is measured: share of equal bits, quantiles of the relative error,
// its mean. Errors do not add up through depth, because the inputs are always the first machine's. Of two recorded
// traces nothing is made again: results stand beside each other as they came, and what differs grows through depth.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "diagnose/recorder.h"
#include "model/causal_lm.h"

namespace faultline {

struct Side {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;
};

struct Difference {
  std::string operation;  // "faultline::few_rows_linear"
  std::string family;     // of a rule: "matmul"; "": none
  int64_t layer = -1;     // -1: all of them together
  int64_t calls = 0, elements = 0;
  int64_t same_inputs = 0;                           // calls whose inputs were equal: all, but of two traces
  double share_equal = 0, mean = 0, rms = 0;         // relative error: mean is the bias
  std::vector<std::pair<double, double>> quantiles;  // (p, relative error), of the unequal ones
};

struct Comparison {
  std::vector<Difference> operators;  // all layers together, the worst first
  std::vector<Difference> layers;     // per operator and layer
  std::vector<std::string> not_compared;
};

// The model lives on the first side.
std::vector<RecordedCall> record_forward(const CausalLm& model, const at::Tensor& tokens);
Comparison compare_sides(const std::vector<RecordedCall>& calls, const Side& second);
// The n-th call of an operator family at a place is compared with the n-th there. UsageError: they have none in common.
Comparison compare_traces(const std::vector<RecordedCall>& first, const std::vector<RecordedCall>& second);

nlohmann::ordered_json to_json(const Comparison& comparison);
// What the fault `profile` reads.
nlohmann::ordered_json profile_json(const Difference& difference, at::ScalarType dtype);

}  // namespace faultline
