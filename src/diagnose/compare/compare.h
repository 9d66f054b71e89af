// Two machines, operator by operator: every call that a forward makes on the first is made again on the second with the
// same inputs, and the difference of their results is measured: share of equal bits, quantiles of the relative error,
// its mean. Errors do not add up through depth, because the inputs are always the first machine's. The calls may come
// from a trace; two traces are judged beside each other (divergence.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "diagnose/compare/profile.h"
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
  int64_t calls = 0;
  MeasuredErrors errors;
};

struct Comparison {
  std::vector<Difference> operators;  // all layers together, the worst first
  std::vector<Difference> layers;     // per operator and layer
  std::vector<std::string> not_compared;
};

// The model lives on the first side.
std::vector<RecordedCall> record_forward(const model::CausalLm& model, const at::Tensor& tokens);
void trace_forward(const model::CausalLm& model, const at::Tensor& tokens, TraceWriter& trace);
// Of a trace, the calls whose tensors it holds; `dtype`: the type that most of the forward computes in.
struct StoredCalls {
  std::vector<RecordedCall> calls;
  at::ScalarType dtype = at::kFloat;
};
StoredCalls stored_calls(const std::filesystem::path& path);  // UsageError: it holds digests only
Comparison compare_sides(const std::vector<RecordedCall>& calls, const Side& second);
// The weights by Hugging Face's names, fused ones by their parts, as traces list them.
std::vector<NamedWeight> weights_of(model::CausalLm& model);

Json to_json(const Comparison& comparison);

struct Origin {
  std::string first, second, model;  // model: of the recipe; "": none
  at::ScalarType dtype = at::kFloat;
};
// A profile for each operator that differs, and recipe.yaml, which makes the first machine err as the second one does.
// UsageError where none differs.
void write_profiles(const std::filesystem::path& folder, const Comparison& comparison, const Origin& origin);

}  // namespace faultline::diagnose
