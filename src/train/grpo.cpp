#include "train/grpo.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace faultline::train {
namespace {

constexpr double kStdEpsilon = 1e-6;
constexpr double kMaxLogRatio = 20, kMaxK3 = 10;

// Note [KL in fp32]: log-probabilities near -0.01 have steps of 2^-14 in bf16; differences of that size are what a KL
// measures. So these functions refuse half types instead of returning rounding.
void require_full_precision(const at::Tensor& tensor, const char* name) {
  if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kDouble)
    throw UsageError(fmt::format("{} must be fp32 or fp64; got {}: a difference of close 16-bit numbers is rounding",
                                 name, c10::toString(tensor.scalar_type())));
}

void require_same_shape(const at::Tensor& a, const char* a_name, const at::Tensor& b, const char* b_name) {
  require_full_precision(a, a_name);
  require_full_precision(b, b_name);
  if (a.sizes() != b.sizes())
    throw UsageError(fmt::format("{} has shape ({}), {} ({})", a_name, fmt::join(a.sizes(), ", "), b_name,
                                 fmt::join(b.sizes(), ", ")));
}

std::size_t index_by_name(std::string_view name, const std::vector<std::string>& names, const char* what) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw UsageError(fmt::format("unknown {} '{}'{}", what, name, did_you_mean(name, names)));
  return static_cast<std::size_t>(found - names.begin());
}

void require_groups(const at::Tensor& rewards) {
  require_full_precision(rewards, "rewards");
  if (rewards.dim() != 2 || rewards.numel() == 0)
    throw UsageError(fmt::format("rewards must be (groups, samples), neither of them 0; got ({})",
                                 fmt::join(rewards.sizes(), ", ")));
}

}  // namespace

at::Tensor group_advantages(const at::Tensor& rewards, bool by_std) {
  require_groups(rewards);
  if (rewards.size(1) == 1) return by_std ? rewards / (1 + kStdEpsilon) : rewards.clone();
  at::Tensor centred = rewards - rewards.mean(1, /*keepdim=*/true);
  if (!by_std) return centred;
  const at::Tensor variance = centred.square().sum(1, /*keepdim=*/true) / static_cast<double>(rewards.size(1) - 1);
  return centred / (variance.sqrt() + kStdEpsilon);
}

at::Tensor groups_that_differ(const at::Tensor& rewards) {
  require_groups(rewards);
  return rewards.amax(1).ne(rewards.amin(1));
}

const std::vector<std::string>& aggregation_names() {
  static const std::vector<std::string> names = {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean",
                                                 "seq-mean-token-sum-norm"};
  return names;
}

Aggregation aggregation_by_name(std::string_view name) {
  return static_cast<Aggregation>(index_by_name(name, aggregation_names(), "aggregation"));
}

BatchSize batch_size_of(const at::Tensor& mask, int64_t longest) {
  return {mask.sum().to(at::kLong).item<int64_t>(), mask.sum(1).gt(0).sum().item<int64_t>(), longest};
}

at::Tensor token_weights(const at::Tensor& mask, Aggregation aggregation, const BatchSize& batch) {
  const at::Tensor kept = mask.scalar_type() == at::kDouble ? mask : mask.to(at::kFloat);
  const bool by_token = aggregation == Aggregation::kTokenMean;
  const bool by_longest = aggregation == Aggregation::kSequenceMeanTokenSumNorm;
  if ((by_token ? batch.tokens : batch.sequences) < 1)
    throw UsageError("a batch without a single response token has no loss; were all responses empty or filtered?");
  if (by_longest && batch.longest < 1) throw UsageError("seq-mean-token-sum-norm needs the longest response allowed");
  if (by_token) return kept / static_cast<double>(batch.tokens);
  const auto sequences = static_cast<double>(batch.sequences);
  if (by_longest) return kept / (sequences * static_cast<double>(batch.longest));
  if (aggregation == Aggregation::kSequenceMeanTokenSum) return kept / sequences;
  return kept / (kept.sum(1, /*keepdim=*/true).clamp_min(1) * sequences);
}

PolicyTerms policy_terms(const at::Tensor& now, const at::Tensor& old, const at::Tensor& advantages,
                         const ClipOptions& clip) {
  require_same_shape(now, "log-probabilities", old, "old log-probabilities");
  require_same_shape(now, "log-probabilities", advantages, "advantages");
  if (!(clip.low >= 0 && clip.low < 1 && clip.high >= 0 && clip.dual > 1))
    throw UsageError(fmt::format("clip: low from 0 to 1, high at least 0, dual above 1; got {}, {}, {}", clip.low,
                                 clip.high, clip.dual));
  const at::Tensor ratio = (now - old).clamp(-kMaxLogRatio, kMaxLogRatio).exp();
  const at::Tensor plain = -advantages * ratio, bounded = -advantages * ratio.clamp(1 - clip.low, 1 + clip.high);
  const at::Tensor pessimistic = at::maximum(plain, bounded), dual = -advantages * clip.dual;
  const at::Tensor negative = advantages.lt(0);
  return {at::where(negative, at::minimum(pessimistic, dual), pessimistic), bounded.gt(plain).to(now.scalar_type()),
          pessimistic.gt(dual).logical_and(negative).to(now.scalar_type())};
}

const std::vector<std::string>& kl_names() {
  static const std::vector<std::string> names = {"k1", "abs", "k2", "k3"};
  return names;
}

KlEstimator kl_by_name(std::string_view name) {
  return static_cast<KlEstimator>(index_by_name(name, kl_names(), "KL estimator"));
}

at::Tensor kl_terms(const at::Tensor& now, const at::Tensor& reference, KlEstimator estimator) {
  require_same_shape(now, "log-probabilities", reference, "reference log-probabilities");
  switch (estimator) {
    case KlEstimator::kK1: return now - reference;
    case KlEstimator::kAbs: return (now - reference).abs();
    case KlEstimator::kK2: return 0.5 * (now - reference).square();
    case KlEstimator::kK3: break;
  }
  const at::Tensor x = (reference - now).clamp(-kMaxLogRatio, kMaxLogRatio);
  return (x.exp() - x - 1).clamp(-kMaxK3, kMaxK3);
}

at::Tensor importance_weights(const at::Tensor& actor, const at::Tensor& rollout, double limit) {
  require_same_shape(actor, "actor log-probabilities", rollout, "rollout log-probabilities");
  if (!(limit > 0))
    throw UsageError(fmt::format("truncated importance sampling: the limit must be positive; got {}", limit));
  return (actor - rollout).detach().clamp(-kMaxLogRatio, kMaxLogRatio).exp().clamp_max(limit);
}

at::Tensor full_kl(const at::Tensor& p_logits, const at::Tensor& q_logits) {
  const at::Tensor p = at::log_softmax(p_logits, -1, at::kFloat), q = at::log_softmax(q_logits, -1, at::kFloat);
  return (p.exp() * (p - q)).sum(-1);
}

Mismatch mismatch(const at::Tensor& actor, const at::Tensor& rollout, const at::Tensor& mask) {
  require_same_shape(actor, "actor log-probabilities", rollout, "rollout log-probabilities");
  const at::Tensor chosen = mask.to(at::kBool);
  const at::Tensor a = actor.detach().masked_select(chosen).cpu().to(at::kDouble),
                   r = rollout.detach().masked_select(chosen).cpu().to(at::kDouble);
  Mismatch result;
  result.tokens = a.numel();
  if (result.tokens == 0) return result;
  const at::Tensor difference = a - r, ratio = difference.clamp(-kMaxLogRatio, kMaxLogRatio).exp();
  result.mean_difference = difference.abs().mean().item<double>();
  result.max_difference = difference.abs().max().item<double>();
  result.mean_probability_difference = (a.exp() - r.exp()).abs().mean().item<double>();
  result.k1 = -difference.mean().item<double>();
  result.k3 = (ratio - difference - 1).mean().item<double>();
  const at::Tensor sorted = std::get<0>(ratio.sort());
  const auto quantile = [&](double share) {  // nearest rank: a value that occurred
    return sorted[std::llround(share * static_cast<double>(result.tokens - 1))].item<double>();
  };
  result.ratio_low = quantile(0.01), result.ratio_median = quantile(0.5), result.ratio_high = quantile(0.99);
  const double sum = ratio.sum().item<double>(), squares = ratio.square().sum().item<double>();
  result.effective_share = sum * sum / (static_cast<double>(result.tokens) * squares);
  return result;
}

}  // namespace faultline::train
