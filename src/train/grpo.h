// GRPO as pure functions of tensors; names and defaults are verl's, so that runs can be compared. Note [Token weights]:
// every aggregation is a weighted sum over tokens whose weights are known before the forward, so a batch cut into
// micro-batches, or a micro-batch into chunks of positions, gives the loss and the gradient of the whole one.
// Shapes: G groups of n samples; B sequences of T response positions; a mask holds 1 where a response token is. All in
// fp32 or fp64: half types are refused, because a KL of two close bf16 numbers is rounding (Note [KL in fp32]).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace faultline::train {

// (R - mean of the group) / (unbiased standard deviation + 1e-6); by_std false: R - mean (Dr.GRPO). A group of one
// sample keeps its reward (mean 0, deviation 1). rewards: (G, n) -> (G, n)
at::Tensor group_advantages(const at::Tensor& rewards, bool by_std);
// DAPO: groups that teach something, whose rewards are not all equal. (G, n) -> (G) bool
at::Tensor groups_that_differ(const at::Tensor& rewards);

enum class Aggregation { kTokenMean, kSequenceMeanTokenSum, kSequenceMeanTokenMean, kSequenceMeanTokenSumNorm };
Aggregation aggregation_by_name(std::string_view name);  // "token-mean", …; UsageError with the nearest
const std::vector<std::string>& aggregation_names();

// What a micro-batch cannot know of its batch. Sequences without a response token do not count.
struct BatchSize {
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t longest = 0;  // seq-mean-token-sum-norm: the divisor, the same for the whole run
};
BatchSize batch_size_of(const at::Tensor& mask, int64_t longest);
// Weights whose sum with per-token losses is the batch's loss. mask: (B, T) -> (B, T) fp32
at::Tensor token_weights(const at::Tensor& mask, Aggregation aggregation, const BatchSize& batch);

struct ClipOptions {
  double low = 0.2, high = 0.2;  // DAPO: 0.2, 0.28
  double dual = 3;               // bound on -A r for A < 0
};
struct PolicyTerms {
  at::Tensor loss;          // per token, with gradient
  at::Tensor clipped;       // 1 where the clip decided
  at::Tensor dual_bounded;  // 1 where the dual bound did
};
// d = clamp(now - old, ±20), r = e^d, L = max(-A r, -A clamp(r, 1 - low, 1 + high)); for A < 0 also min(L, -A dual).
// now, old, advantages: one shape
PolicyTerms policy_terms(const at::Tensor& now, const at::Tensor& old, const at::Tensor& advantages,
                         const ClipOptions& clip);

enum class KlEstimator { kK1, kAbs, kK2, kK3 };
KlEstimator kl_by_name(std::string_view name);
const std::vector<std::string>& kl_names();
// Per token, with gradient. k3: x = clamp(reference - now, ±20), clamp(e^x - x - 1, ±10)
at::Tensor kl_terms(const at::Tensor& now, const at::Tensor& reference, KlEstimator estimator);

// Truncated importance sampling: min(e^clamp(actor - rollout, ±20), limit), without gradient.
at::Tensor importance_weights(const at::Tensor& actor, const at::Tensor& rollout, double limit);

// KL(p || q) over the whole vocabulary of each row, p from the first logits. (N, V), (N, V) -> (N)
at::Tensor full_kl(const at::Tensor& p_logits, const at::Tensor& q_logits);

// How far the policy that sampled is from the one that learns.
struct Mismatch {
  double mean_difference = 0, max_difference = 0;          // |log-probability of actor - of rollout|
  double mean_probability_difference = 0;                  // |probability - probability|
  double k1 = 0, k3 = 0;                                   // estimates of KL(rollout || actor), over tokens
  double ratio_low = 1, ratio_median = 1, ratio_high = 1;  // e^(actor - rollout): quantiles 1 %, 50 %, 99 %
  double effective_share = 1;                              // effective sample size / tokens: (sum w)^2 / (n sum w^2)
  int64_t tokens = 0;
};
Mismatch mismatch(const at::Tensor& actor, const at::Tensor& rollout, const at::Tensor& mask);

}  // namespace faultline::train
