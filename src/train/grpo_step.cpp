// A GRPO step: sample n responses to each prompt, score them, compare within each prompt's group, update. Tokens of all
// samples lie one after another in flat tensors; a micro-batch is a range of them.
#include <ATen/Functions.h>

#include <algorithm>

#include "site/scope.h"
#include "train/step.h"

namespace faultline::train {
namespace {

// The samples that are learnt from, with one number a token.
struct Batch {
  std::vector<Sequence> sequences;
  std::vector<int64_t> lengths;      // response tokens of each
  at::Tensor rollout;                // (P) fp32: log-probabilities as sampled
  at::Tensor advantages;             // (P) fp32
  at::Tensor weights;                // (P) fp32: Note [Token weights]
  at::Tensor old, reference;         // (P) fp32, or undefined
  std::vector<SequenceBatch> micro;  // all of them, in order
  std::vector<int64_t> first;        // of each micro-batch: its first token
  std::vector<std::size_t> updates;  // of each update: its first micro-batch
};

at::Tensor weights_of(const StageSpec& stage, std::span<const int64_t> lengths) {
  const at::Tensor sizes = at::tensor(at::ArrayRef<int64_t>(lengths.data(), lengths.size()), at::kLong);
  const at::Tensor mask = at::arange(stage.max_new_tokens, at::kLong).unsqueeze(0).lt(sizes.unsqueeze(1));  // (B, T)
  const at::Tensor weights = token_weights(mask, stage.aggregation, batch_size_of(mask, stage.max_new_tokens));
  return weights.masked_select(mask);
}

void cut_into_micro_batches(Batch& batch, const StageSpec& stage, std::size_t per_update, const at::Device& device) {
  const std::size_t size = std::min(per_update, static_cast<std::size_t>(stage.rows()));
  int64_t token = 0;
  for (std::size_t part = 0; part < batch.sequences.size(); part += per_update) {
    const std::size_t end = std::min(part + per_update, batch.sequences.size());
    batch.updates.push_back(batch.micro.size());
    for (std::size_t first = part; first < end; first += size) {
      const std::size_t count = std::min(size, end - first);
      batch.micro.push_back(make_batch(std::span(batch.sequences).subspan(first, count), device));
      batch.first.push_back(token);
      token += batch.micro.back().targets.size(0);
    }
  }
}

// The samples that are learnt from, update by update; within one the short ones first, because a micro-batch is as wide
// as its longest row. The loss is a sum, in whatever order.
std::vector<std::size_t> order_of_samples(const StepContext& context, const Rollout& rollout, const at::Tensor& kept) {
  const StageSpec& stage = context.stage;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < rollout.completions.size(); ++i)
    if (kept[static_cast<int64_t>(i) / stage.n].item<bool>()) order.push_back(i);
  const auto length = [&](std::size_t i) {
    return context.data.problems[rollout.problems[i]].prompt.size() + rollout.completions[i].tokens.size();
  };
  const std::size_t parts = static_cast<std::size_t>(stage.updates);
  const std::size_t per_update = std::max<std::size_t>(1, (order.size() + parts - 1) / parts);
  for (std::size_t first = 0; first < order.size(); first += per_update) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min(per_update, order.size() - first));
    std::stable_sort(begin, end, [&](std::size_t a, std::size_t b) { return length(a) < length(b); });
  }
  return order;
}

Batch make_learning_batch(const StepContext& context, const Rollout& rollout, const at::Tensor& kept) {
  const StageSpec& stage = context.stage;
  const at::Tensor all = group_advantages(rollout.rewards, stage.norm_adv_by_std).reshape(-1);
  Batch batch;
  std::vector<double> advantages, log_probabilities;
  for (const std::size_t i : order_of_samples(context, rollout, kept)) {
    const model::Completion& completion = rollout.completions[i];
    batch.sequences.push_back({context.data.problems[rollout.problems[i]].prompt, completion.tokens});
    batch.lengths.push_back(std::ssize(completion.tokens));
    advantages.insert(advantages.end(), completion.tokens.size(), all[static_cast<int64_t>(i)].item<double>());
    log_probabilities.insert(log_probabilities.end(), completion.log_probabilities.begin(),
                             completion.log_probabilities.end());
  }
  if (batch.sequences.empty()) return batch;
  const at::Device device = context.model.device();
  batch.advantages = at::tensor(advantages, at::kFloat).to(device);
  batch.rollout = at::tensor(log_probabilities, at::kFloat).to(device);
  const std::size_t parts = static_cast<std::size_t>(stage.updates);
  const std::size_t per_update = (batch.sequences.size() + parts - 1) / parts;
  std::vector<at::Tensor> weights;
  for (std::size_t first = 0; first < batch.lengths.size(); first += per_update)
    weights.push_back(
        weights_of(stage, std::span(batch.lengths).subspan(first, std::min(per_update, batch.lengths.size() - first))));
  batch.weights = at::cat(weights).to(device);
  cut_into_micro_batches(batch, stage, per_update, device);
  return batch;
}

at::Tensor score_all(const StepContext& context, const Batch& batch, site::Phase phase) {
  const site::PhaseGuard scope(phase);
  std::vector<at::Tensor> scores;
  for (const SequenceBatch& micro : batch.micro)
    scores.push_back(score_tokens(context.model, micro, context.stage.sampling.temperature).log_probabilities);
  return at::cat(scores);
}

// The reference policy's weights take the actor's place; the masters bring the actor back to the bit.
at::Tensor reference_scores(StepContext& context, const Batch& batch) {
  const auto& parameters = context.optimizer.parameters();
  {
    const at::NoGradGuard no_gradients;
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor->copy_((*context.reference)[i]);
    if (context.hooks.weights_changed) context.hooks.weights_changed();
  }
  at::Tensor scores = score_all(context, batch, site::Phase::kRef);
  context.optimizer.write_parameters();
  if (context.hooks.weights_changed) context.hooks.weights_changed();
  return scores;
}

struct Sums {  // () fp64 on the device; weighted as the loss is, or over tokens
  at::Tensor policy, kl, clipped, dual, moved;
};

at::Tensor partial_loss(const StageSpec& stage, const Batch& batch, const at::Tensor& now, int64_t first, Sums& sums) {
  const int64_t count = now.size(0);
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
  const at::Tensor old = batch.old.defined() ? part(batch.old) : now.detach();
  const PolicyTerms terms = policy_terms(now, old, part(batch.advantages), stage.clip);
  at::Tensor losses = terms.loss;
  if (stage.importance_limit > 0)
    losses = losses * importance_weights(old, part(batch.rollout), stage.importance_limit);
  at::Tensor loss = (losses * part(batch.weights)).sum();
  sums.policy += loss.detach().to(at::kDouble);
  sums.clipped += terms.clipped.sum().to(at::kDouble);
  sums.dual += terms.dual_bounded.sum().to(at::kDouble);
  sums.moved += (old - now.detach()).sum().to(at::kDouble);
  if (!batch.reference.defined()) return loss;
  const at::Tensor kl = (kl_terms(now, part(batch.reference), stage.kl) * part(batch.weights)).sum();
  sums.kl += kl.detach().to(at::kDouble);
  return loss + stage.kl_coefficient * kl;
}

struct Learnt {
  double gradient_norm = 0;
  Sums sums;
  TokenScores scores;  // (P) on the CPU
};

Learnt learn(StepContext& context, const Batch& batch) {
  const StageSpec& stage = context.stage;
  Learnt learnt;
  const at::Tensor zero = at::zeros({}, context.model.options().dtype(at::kDouble));
  learnt.sums = {zero.clone(), zero.clone(), zero.clone(), zero.clone(), zero.clone()};
  std::vector<at::Tensor> log_probabilities, entropies;
  for (std::size_t i = 0; i < batch.updates.size(); ++i) {
    const std::size_t first = batch.updates[i];
    const std::size_t end = i + 1 < batch.updates.size() ? batch.updates[i + 1] : batch.micro.size();
    const std::vector<SequenceBatch> part(batch.micro.begin() + static_cast<std::ptrdiff_t>(first),
                                          batch.micro.begin() + static_cast<std::ptrdiff_t>(end));
    const BatchLoss loss = [&](std::size_t micro, const at::Tensor& now, int64_t within) {
      return partial_loss(stage, batch, now, batch.first[first + micro] + within, learnt.sums);
    };
    const UpdateResult result = update(context, part, loss, first);
    learnt.gradient_norm = std::max(learnt.gradient_norm, result.gradient_norm);
    log_probabilities.push_back(result.scores.log_probabilities), entropies.push_back(result.scores.entropies);
  }
  learnt.scores = {at::cat(log_probabilities), at::cat(entropies)};
  for (at::Tensor* sum :
       {&learnt.sums.policy, &learnt.sums.kl, &learnt.sums.clipped, &learnt.sums.dual, &learnt.sums.moved})
    *sum = summed(context.hooks.replicas, *sum);
  return learnt;
}

void add_learning_metrics(Json& metrics, const StageSpec& stage, const Batch& batch, const Learnt& learnt) {
  const auto tokens = static_cast<double>(batch.rollout.size(0));
  const auto updates = static_cast<double>(batch.updates.size());  // fewer than planned where groups were left out
  metrics["actor/pg_loss"] = learnt.sums.policy.item<double>() / updates;
  if (batch.reference.defined()) {
    metrics["actor/kl_loss"] = learnt.sums.kl.item<double>() / updates;
    metrics["actor/kl_coef"] = stage.kl_coefficient;
  }
  metrics["actor/pg_clipfrac"] = learnt.sums.clipped.item<double>() / tokens;
  metrics["actor/pg_clipfrac_lower"] = learnt.sums.dual.item<double>() / tokens;
  metrics["actor/ppo_kl"] = learnt.sums.moved.item<double>() / tokens;
  metrics["actor/grad_norm"] = learnt.gradient_norm;
  metrics["actor/entropy"] = learnt.scores.entropies.mean().item<double>();
  metrics["actor/lr"] = stage.optimizer.learning_rate;
  const at::Tensor rollout = batch.rollout.cpu();
  const at::Tensor actor = batch.old.defined() ? batch.old.cpu() : learnt.scores.log_probabilities;
  const Mismatch m = mismatch(actor, rollout, at::ones_like(rollout));
  metrics["rollout_corr/kl"] = m.k1;
  metrics["rollout_corr/k3_kl"] = m.k3;
  metrics["training/rollout_probs_diff_mean"] = m.mean_probability_difference;
  metrics["faultline/rollout_logp_diff_mean"] = m.mean_difference;
  metrics["faultline/rollout_logp_diff_max"] = m.max_difference;
  metrics["faultline/importance_ratio/p01"] = m.ratio_low;
  metrics["faultline/importance_ratio/p50"] = m.ratio_median;
  metrics["faultline/importance_ratio/p99"] = m.ratio_high;
  metrics["faultline/effective_sample_share"] = m.effective_share;
}

}  // namespace

PartialLoss probe_loss(const StageSpec& stage, int64_t tokens, const at::Device& device) {
  if (stage.algorithm == Algorithm::kSft)
    return [tokens](const at::Tensor& now, int64_t) { return -now.sum() / static_cast<double>(tokens); };
  const at::Tensor values = at::ones({tokens}, at::TensorOptions(at::kFloat).device(device));
  auto batch = std::make_shared<Batch>();
  batch->rollout = -values, batch->advantages = values, batch->weights = values / static_cast<double>(tokens);
  if (stage.updates > 1) batch->old = -values;
  if (stage.use_kl_loss) batch->reference = -values;
  const at::Tensor zero = at::zeros({}, values.options().dtype(at::kDouble));
  auto sums = std::make_shared<Sums>(Sums{zero.clone(), zero.clone(), zero.clone(), zero.clone(), zero.clone()});
  return [stage, batch, sums](const at::Tensor& now, int64_t first) {
    return partial_loss(stage, *batch, now, first, *sums);
  };
}

StepResult grpo_step(StepContext& context) {
  const StageSpec& stage = context.stage;
  StepResult step;
  Stopwatch watch, whole;
  const Rollout rollout = sample(context);
  step.times["timing_s/gen"] = watch.lap();
  const at::Tensor kept = stage.filter_groups ? groups_that_differ(rollout.rewards)
                                              : at::ones({stage.prompts}, at::TensorOptions(at::kBool));
  step.metrics = rollout_metrics(context, rollout, kept);
  Batch batch = make_learning_batch(context, rollout, kept);
  step.metrics["faultline/update_skipped"] = batch.sequences.empty() ? 1 : 0;
  if (!batch.sequences.empty()) {
    if (stage.updates > 1) {
      batch.old = score_all(context, batch, site::Phase::kActorForward);
      step.times["timing_s/old_log_prob"] = watch.lap();
    }
    if (stage.use_kl_loss) {
      batch.reference = reference_scores(context, batch);
      step.times["timing_s/ref"] = watch.lap();
    }
    const Learnt learnt = learn(context, batch);
    add_learning_metrics(step.metrics, stage, batch, learnt);
  }
  step.times["timing_s/update_actor"] = watch.lap();
  const double seconds = whole.lap();
  step.times["timing_s/step"] = seconds;
  const double tokens =
      (step.metrics["response_length/mean"].get<double>() + step.metrics["prompt_length/mean"].get<double>()) *
      static_cast<double>(stage.sequences());
  step.times["perf/throughput"] = tokens / seconds;
  return step;
}

}  // namespace faultline::train
