// AdamW (decoupled weight decay) over a model's parameters, with fp32 master weights and fp32 sums of gradients
// whatever the model computes in. All state lies in four flat tensors, one piece a parameter, so that an update is one
// pass over memory and a checkpoint four reads. Bits depend on the gradients alone: the CPU's update is element by
// element without contraction, its norm a sum in a fixed order; threads do not matter. Parameters are written in place:
// storages stay, and with them places, prepared faults and captured graphs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "model/causal_lm.h"

namespace faultline::train {

struct AdamWOptions {
  double learning_rate = 1e-6;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0.01;
  double clip_norm = 1;  // of all gradients together; 0: never
};

// A gradient that is not finite: the step was not made, weights and moments are as before.
class NonFiniteError : public RuntimeFailure {
 public:
  using RuntimeFailure::RuntimeFailure;
};

class AdamW {
 public:
  // Sets requires_grad on the parameters for as long as it lives.
  AdamW(std::vector<model::CausalLm::Parameter> parameters, const AdamWOptions& options);
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  void take_gradients();  // adds what backward left at the parameters to the sums, and clears it
  void drop_gradients();  // both
  // Clips, updates, clears the sums; returns the norm before clipping. Throws NonFiniteError that names the first bad
  // parameter in the model's order, and drops the gradients.
  double step();

  void restart(const AdamWOptions& options);  // a new stage: the masters stay, the moments begin again
  void set_options(const AdamWOptions& options) { options_ = options; }  // of the stage that a resumed run stands in
  void write_parameters();  // the masters, rounded, into the model: after something else was put there

  const std::vector<model::CausalLm::Parameter>& parameters() const { return parameters_; }
  int64_t steps() const { return steps_; }
  int64_t elements() const { return masters_.numel(); }

  // Pieces of the flat tensors, by parameter: of the master weights and of the two moments.
  std::vector<at::Tensor> masters() const { return pieces(masters_); }
  at::Tensor& flat_masters() { return masters_; }
  at::Tensor& flat_gradients() { return gradients_; }  // the sums so far
  at::Tensor& flat_first() { return first_; }
  at::Tensor& flat_second() { return second_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  const AdamWOptions& options() const { return options_; }

 private:
  std::vector<at::Tensor> pieces(const at::Tensor& flat) const;
  std::string first_bad_gradient() const;

  std::vector<model::CausalLm::Parameter> parameters_;
  AdamWOptions options_;
  at::Tensor masters_, first_, second_, gradients_;  // (elements) fp32
  int64_t steps_ = 0;
};

// One update of flat fp32 tensors, in place; step counts from 1. Gradients are multiplied by `scale` first.
void adamw_update(const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
                  const at::Tensor& gradients, int64_t step, double scale, const AdamWOptions& options);
double gradient_norm(const at::Tensor& gradients);  // of a flat fp32 tensor; fp64 on the CPU

}  // namespace faultline::train
