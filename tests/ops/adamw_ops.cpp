// One update of AdamW and the norm of gradients, for tests/adamw_test.py.
#include <torch/library.h>

#include "train/adamw.h"

namespace faultline {
namespace {

void adamw_operator(const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
                    const at::Tensor& gradients, int64_t step, double scale, double learning_rate, double beta1,
                    double beta2, double epsilon, double weight_decay) {
  train::adamw_update(weights, first, second, gradients, step, scale,
                      {learning_rate, beta1, beta2, epsilon, weight_decay, 0});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline_testing, library) {
  library.def(
      "adamw_(Tensor(a!) weights, Tensor(b!) first, Tensor(c!) second, Tensor gradients, int step, float scale, float "
      "learning_rate, float beta1=0.9, float beta2=0.999, float epsilon=1e-08, float weight_decay=0.01) -> ()",
      &adamw_operator);
  library.def("gradient_norm(Tensor gradients) -> float", &train::gradient_norm);
}

}  // namespace faultline
