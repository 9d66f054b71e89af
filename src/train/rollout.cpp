#include <ATen/Functions.h>

#include <algorithm>
#include <limits>

#include "site/scope.h"
#include "train/step.h"

namespace faultline::train {
namespace {

// Every rank's completions, in order: a row of lengths and tokens each, a row of log-probabilities each.
std::vector<model::Completion> exchanged(const Replicas& replicas, const std::vector<model::Completion>& own,
                                         int64_t budget) {
  const auto count = std::ssize(own);
  at::Tensor tokens = at::zeros({count, budget + 2}, at::kLong), chances = at::zeros({count, budget}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    const model::Completion& one = own[static_cast<std::size_t>(i)];
    int64_t* row = tokens.mutable_data_ptr<int64_t>() + i * (budget + 2);
    row[0] = one.ended ? 1 : 0, row[1] = std::ssize(one.tokens);
    std::copy(one.tokens.begin(), one.tokens.end(), row + 2);
    std::copy(one.log_probabilities.begin(), one.log_probabilities.end(),
              chances.mutable_data_ptr<float>() + i * budget);
  }
  tokens = replicas.gather(tokens).reshape({-1, budget + 2});
  chances = replicas.gather(chances).reshape({-1, budget});
  std::vector<model::Completion> all(static_cast<std::size_t>(tokens.size(0)));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const int64_t* row = tokens.const_data_ptr<int64_t>() + static_cast<int64_t>(i) * (budget + 2);
    const float* chance = chances.const_data_ptr<float>() + static_cast<int64_t>(i) * budget;
    all[i] = {{row + 2, row + 2 + row[1]}, {chance, chance + row[1]}, row[0] != 0};
  }
  return all;
}

std::vector<model::Completion> complete(const StepContext& context, const std::vector<model::Request>& requests) {
  const auto shards = static_cast<std::size_t>(context.stage.shards);
  if (shards == 1) return context.generator->run(requests);
  std::vector<model::Completion> own;
  const std::size_t size = requests.size() / shards;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    if (!context.hooks.replicas.owns(shard, shards)) continue;
    begin_part(context, static_cast<int64_t>(shard));
    const auto first = requests.begin() + static_cast<std::ptrdiff_t>(shard * size);
    for (model::Completion& one : context.generator->run({first, first + static_cast<std::ptrdiff_t>(size)}))
      own.push_back(std::move(one));
  }
  begin_part(context, 0);
  if (context.hooks.replicas.alone()) return own;
  return exchanged(context.hooks.replicas, own, context.stage.max_new_tokens);
}

}  // namespace

Rollout sample(StepContext& context) {
  const StageSpec& stage = context.stage;
  Rollout rollout;
  std::vector<model::Request> requests;
  for (int64_t i = 0; i < stage.prompts; ++i) {
    const std::size_t problem = problem_at(context.seed, context.position.stage,
                                           context.position.step * stage.prompts + i, context.data.problems.size());
    for (int64_t j = 0; j < stage.n; ++j) {
      rollout.problems.push_back(problem);
      requests.push_back({context.data.problems[problem].prompt, stage.max_new_tokens,
                          sample_key(context.seed, context.position, i * stage.n + j), stage.sampling});
    }
  }
  {
    const site::PhaseGuard phase(site::Phase::kRollout);
    const std::shared_ptr<void> guard = context.hooks.rollout ? context.hooks.rollout(context.position) : nullptr;
    rollout.completions = complete(context, requests);
  }
  std::vector<double> rewards;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const model::Completion& completion = rollout.completions[i];
    const std::span<const int64_t> generated(completion.tokens.data(),
                                             completion.tokens.size() - (completion.ended ? 1 : 0));
    rewards.push_back(context.data.reward(rollout.problems[i], generated));
  }
  rollout.rewards = at::tensor(rewards, at::kFloat).view({stage.prompts, stage.n});
  return rollout;
}

Json rollout_metrics(const StepContext& context, const Rollout& rollout, const at::Tensor& kept) {
  int64_t tokens = 0, prompt_tokens = 0, longest = 0, shortest = std::numeric_limits<int64_t>::max(), ended = 0;
  for (std::size_t i = 0; i < rollout.completions.size(); ++i) {
    const int64_t length = std::ssize(rollout.completions[i].tokens);
    tokens += length, ended += rollout.completions[i].ended;
    longest = std::max(longest, length), shortest = std::min(shortest, length);
    prompt_tokens += std::ssize(context.data.problems[rollout.problems[i]].prompt);
  }
  const auto samples = static_cast<double>(rollout.completions.size());
  return {{"critic/score/mean", rollout.rewards.mean().item<double>()},
          {"critic/score/max", rollout.rewards.max().item<double>()},
          {"critic/score/min", rollout.rewards.min().item<double>()},
          {"response_length/mean", static_cast<double>(tokens) / samples},
          {"response_length/max", longest},
          {"response_length/min", shortest},
          {"response_length/clip_ratio", 1 - static_cast<double>(ended) / samples},
          {"prompt_length/mean", static_cast<double>(prompt_tokens) / samples},
          {"faultline/groups_that_differ", groups_that_differ(rollout.rewards).sum().item<int64_t>()},
          {"faultline/groups_kept", kept.sum().item<int64_t>()}};
}

}  // namespace faultline::train
