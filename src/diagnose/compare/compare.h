// Two machines, operator by operator: every call that a forward makes on the first is made again on the second with the
// same inputs, and the difference of their results is measured: share of equal bits, quantiles of the relative error,
// its mean. Errors do not add up through depth, because the inputs are always the first machine's. Of two recorded
// traces nothing is made again: results stand beside each other as they came, and what differs grows through depth.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "diagnose/recorder.h"
#include "model/causal_lm.h"

namespace faultline::diagnose {

struct Side {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;
};

// What the fault `profile` draws from: Note [A profile keeps the error's energy].
struct Profile {
  double share_equal = 0;
  std::vector<std::pair<double, double>> quantiles;  // (p, relative error) of the unequal ones; none: all are equal
};

struct Difference {
  std::string operation;  // "faultline::few_rows_linear"
  std::string family;     // of a rule: "matmul"; "": none
  int64_t layer = -1;     // -1: all of them together
  int64_t calls = 0, elements = 0;
  int64_t same_inputs = 0;                               // calls whose inputs were equal: all, but of two traces
  double share_equal = 0, mean = 0, rms = 0, worst = 0;  // relative error, element by element: mean is the bias
  double noise_to_signal = 0;                            // root of the error's energy over the signal's, mean of rows
  Profile profile;
};

struct Comparison {
  std::vector<Difference> operators;  // all layers together, the worst first
  std::vector<Difference> layers;     // per operator and layer
  std::vector<std::string> not_compared;
};

// The model lives on the first side.
std::vector<RecordedCall> record_forward(const model::CausalLm& model, const at::Tensor& tokens);
Comparison compare_sides(const std::vector<RecordedCall>& calls, const Side& second);
// The n-th call of an operator family at a place is compared with the n-th there. UsageError: they have none in common.
Comparison compare_traces(const std::vector<RecordedCall>& first, const std::vector<RecordedCall>& second);

Json to_json(const Comparison& comparison);

struct Origin {
  std::string first, second, model;  // model: of the recipe; "": none
  at::ScalarType dtype = at::kFloat;
};
// A profile for each operator that differs, and recipe.yaml, which makes the first machine err as the second one does.
// UsageError where none differs.
void write_profiles(const std::filesystem::path& folder, const Comparison& comparison, const Origin& origin);

// Recorded operator calls in a file, for machines that never meet: inputs and results of every call of a forward, as
// tensors of a .safetensors file, and the calls themselves as JSON in its metadata. Nothing in it is executed on
// reading but operators of our own list, with arguments that fit their schemas: a trace from a stranger is only data.

// Calls that compute something and can be made again (those of a family: products, norms, attention, …); a tensor that
// several calls read is written once. -> how many calls were written
int64_t write_trace(const std::filesystem::path& path, const std::vector<RecordedCall>& calls);

// UsageError where the file is no trace, RuntimeFailure where it is damaged.
std::vector<RecordedCall> read_trace(const std::filesystem::path& path);
bool is_trace(const std::string& name);  // by its ending

}  // namespace faultline::diagnose
