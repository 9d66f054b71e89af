// What an operator call had to give: recomputed in fp64 elsewhere, with the bound that rounding allows. Data that only
// moves must come out as it went in. Operators that models are written in (products, norms, attention, …) have formulas
// here; torch's elementwise ones, sums and softmax are run again in fp64 (recomputation_elementwise.cpp).
#pragma once

#include "diagnose/observation.h"
#include "diagnose/recorder.h"

namespace faultline::diagnose {

// Where a product's arguments stand, of torch, of ours and of vLLM's packed ones; their weight is a matrix only where a
// recording has put it back (compare/packed.h).
struct ProductArguments {
  std::size_t x, weight;
  bool transposed;      // the weight is (K, N)
  int64_t bias = -1;    // none
  int64_t scales = -1;  // of fp8: x's, and the weight's behind it
};
std::optional<ProductArguments> product_arguments(const RecordedCall& call);
// Attention over pages; a recording keeps it as {q, k, v, mask, scale}, without an operator to call.
bool is_paged_attention(std::string_view name);

enum class Checked { kYes, kNothingToCheck, kNoReference };

struct Recomputation {
  at::Device device = at::kCPU;  // where it is computed
  bool keep_weights = false;     // in fp64, from call to call: 4 times the memory of a 16-bit model, half the time

  // The observations that the call allows, appended.
  Checked check(const RecordedCall& call, std::vector<Observation>& observations);

 private:
  struct Kept {
    at::Tensor weight, wide, norms;  // of its rows
  };
  at::Tensor wide(const at::Tensor& x) const { return x.to(device).to(at::kDouble); }
  Kept wide_weight(const at::Tensor& weight);
  void check_product(const RecordedCall& call, const ProductArguments& where, std::vector<Observation>& observations);
  void check_matrices(const RecordedCall& call, std::vector<Observation>& observations) const;
  void check_scaled_product(const RecordedCall& call, std::vector<Observation>& observations) const;
  void check_norm(const RecordedCall& call, std::vector<Observation>& observations) const;
  void check_sum(const RecordedCall& call, std::vector<Observation>& observations) const;
  void check_activation(const RecordedCall& call, std::vector<Observation>& observations) const;
  void check_rotary(const RecordedCall& call, std::vector<Observation>& observations) const;
  void check_turned(const RecordedCall& call, std::vector<Observation>& observations) const;
  void check_attention(const RecordedCall& call, std::vector<Observation>& observations) const;
  bool check_movement(const RecordedCall& call, std::vector<Observation>& observations) const;
  bool check_elementwise(const RecordedCall& call, std::vector<Observation>& observations) const;
  // The operator itself, on fp64 copies of what it was given.
  at::Tensor run_wide(const RecordedCall& call, bool of_sizes = false) const;
  Observation compare(const char* operation, const RecordedCall& call, std::size_t result, const at::Tensor& exact,
                      const at::Tensor& tolerance) const;
  // intermediate: how large numbers get on the way to exact, broadcast; undefined: no larger than it (range.h).
  Observation compare_in_range(const char* operation, const RecordedCall& call, std::size_t result,
                               const at::Tensor& exact, const at::Tensor& tolerance,
                               const at::Tensor& intermediate = {}) const;

  std::vector<Kept> kept_;
};

// The position of an argument in the operator's schema; -1: it has none of that name, or is not known here.
int64_t argument_index(const RecordedCall& call, std::string_view name);

}  // namespace faultline::diagnose
