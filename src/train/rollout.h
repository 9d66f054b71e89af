// The sampling half of a GRPO step: n responses to each prompt, scored by the task. Several processes share it by
// shards and exchange what they sampled, so that each has all of it.
#pragma once

#include "train/step.h"

namespace faultline {

struct Rollout {
  std::vector<std::size_t> problems;  // of each sample; a group's samples stand together
  std::vector<Completion> completions;
  at::Tensor rewards;  // (prompts, n) fp32
};

Rollout sample(StepContext& context);
// verl's names; kept: (prompts) bool, the groups that are learnt from.
Json rollout_metrics(const StepContext& context, const Rollout& rollout, const at::Tensor& kept);

}  // namespace faultline
