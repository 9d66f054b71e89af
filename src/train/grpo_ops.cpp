// The pure functions of grpo.h as operators faultline::grpo_*: what tests/grpo_test.py holds against its own formulas,
// and what other people's trainers may call.
#include <torch/library.h>

#include "train/grpo.h"

namespace faultline::train {
namespace {

at::Tensor advantages(const at::Tensor& rewards, bool by_std) { return group_advantages(rewards, by_std); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> policy_loss(const at::Tensor& now, const at::Tensor& old,
                                                           const at::Tensor& advantages, double low, double high,
                                                           double dual) {
  const PolicyTerms terms = policy_terms(now, old, advantages, {low, high, dual});
  return {terms.loss, terms.clipped, terms.dual_bounded};
}

at::Tensor weights(const at::Tensor& mask, std::string_view aggregation, int64_t longest) {
  return token_weights(mask, aggregation_by_name(aggregation), batch_size_of(mask, longest));
}

at::Tensor kl(const at::Tensor& now, const at::Tensor& reference, std::string_view estimator) {
  return kl_terms(now, reference, kl_by_name(estimator));
}

// mean and max |difference|, mean probability difference, k1, k3, ratio quantiles 1, 50, 99 %, effective share
at::Tensor mismatch_numbers(const at::Tensor& actor, const at::Tensor& rollout, const at::Tensor& mask) {
  const Mismatch m = mismatch(actor, rollout, mask);
  return at::tensor({m.mean_difference, m.max_difference, m.mean_probability_difference, m.k1, m.k3, m.ratio_low,
                     m.ratio_median, m.ratio_high, m.effective_share},
                    at::kDouble);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, library) {
  library.def("grpo_advantages(Tensor rewards, bool by_std=True) -> Tensor", &advantages);
  library.def("grpo_groups_that_differ(Tensor rewards) -> Tensor", &groups_that_differ);
  library.def("grpo_token_weights(Tensor mask, str aggregation, int longest=0) -> Tensor", &weights);
  library.def(
      "grpo_policy_terms(Tensor now, Tensor old, Tensor advantages, float low=0.2, float high=0.2, float dual=3.0) -> "
      "(Tensor loss, Tensor clipped, Tensor dual_bounded)",
      &policy_loss);
  library.def("grpo_kl_terms(Tensor now, Tensor reference, str estimator) -> Tensor", &kl);
  library.def("grpo_importance_weights(Tensor actor, Tensor rollout, float limit=2.0) -> Tensor", &importance_weights);
  library.def("grpo_full_kl(Tensor p_logits, Tensor q_logits) -> Tensor", &full_kl);
  library.def("grpo_mismatch(Tensor actor, Tensor rollout, Tensor mask) -> Tensor", &mismatch_numbers);
}

}  // namespace faultline::train
