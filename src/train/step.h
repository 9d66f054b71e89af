// One step of each algorithm, as the trainer calls them: gradients are in the optimizer's hands and the weights updated
// when they return.
#pragma once

#include "train/actor.h"
#include "train/trainer.h"

namespace faultline::train {

struct StepContext {
  model::CausalLm& model;
  const TrainData& data;
  const StageSpec& stage;
  TrainPosition position;
  uint64_t seed = 0;
  AdamW& optimizer;
  model::Generator* generator = nullptr;               // GRPO
  const std::vector<at::Tensor>* reference = nullptr;  // GRPO with KL: weights of the reference policy, by parameter
  const TrainHooks& hooks;
};

struct StepResult {
  Json metrics = Json::object();  // equal in equal runs
  Json times = Json::object();    // seconds and rates
};

StepResult sft_step(StepContext& context);
StepResult grpo_step(StepContext& context);

// Backward of micro-batches and one update. loss(i, log-probabilities, first): the part of micro-batch i. first_part:
// the number of the first micro-batch in the whole step, where that has several updates. Where anything is not finite
// nothing is updated: NonFiniteError names the operator that made it first.
struct UpdateResult {
  double loss = 0, gradient_norm = 0;
  TokenScores scores;  // of all tokens, on the CPU
};
using BatchLoss = std::function<at::Tensor(std::size_t batch, const at::Tensor& log_probabilities, int64_t first)>;
UpdateResult update(StepContext& context, const std::vector<SequenceBatch>& batches, const BatchLoss& loss,
                    std::size_t first_part = 0);

// What follows draws its random numbers as this part of the step, whichever process computes it (Note [Shards]).
void begin_part(const StepContext& context, int64_t part);

// A loss of the stage's form for the first `tokens` tokens of nothing in particular: what a census of a step needs.
PartialLoss probe_loss(const StageSpec& stage, int64_t tokens, const at::Device& device);

// Seconds since it was made or asked last.
class Stopwatch {
 public:
  Stopwatch();
  double lap();

 private:
  double last_;
};

// The sampling half of a GRPO step: n responses to each prompt, scored by the task. Several processes share it by
// shards and exchange what they sampled, so that each has all of it.

struct Rollout {
  std::vector<std::size_t> problems;  // of each sample; a group's samples stand together
  std::vector<model::Completion> completions;
  at::Tensor rewards;  // (prompts, n) fp32
};

Rollout sample(StepContext& context);
// verl's names; kept: (prompts) bool, the groups that are learnt from.
Json rollout_metrics(const StepContext& context, const Rollout& rollout, const at::Tensor& kept);

}  // namespace faultline::train
