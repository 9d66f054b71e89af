// Supervised fine-tuning: the mean negative log-probability of the solutions' tokens.
#include <ATen/Functions.h>

#include "base/error.h"
#include "task/evaluate.h"
#include "train/step.h"

namespace faultline::train {

StepResult sft_step(StepContext& context) {
  const StageSpec& stage = context.stage;
  std::vector<Sequence> sequences;
  int64_t tokens = 0;
  for (int64_t i = 0; i < stage.prompts; ++i) {
    const TrainProblem& problem = context.data.problems[problem_at(
        context.seed, context.position.stage, context.position.step * stage.prompts + i, context.data.problems.size())];
    sequences.push_back({problem.prompt, problem.solution});
    tokens += std::ssize(problem.solution);
  }
  Stopwatch watch;
  std::vector<SequenceBatch> batches;
  const auto size = static_cast<std::size_t>(stage.rows());
  for (std::size_t first = 0; first < sequences.size(); first += size)
    batches.push_back(make_batch(std::span(sequences).subspan(first, size), context.model.device()));
  const UpdateResult result = update(context, batches, [&](std::size_t, const at::Tensor& now, int64_t) {
    return -now.sum() / static_cast<double>(tokens);
  });
  const double seconds = watch.lap();
  StepResult step;
  step.metrics = {{"train/loss", result.loss},
                  {"actor/grad_norm", result.gradient_norm},
                  {"actor/entropy", result.scores.entropies.mean().item<double>()},
                  {"actor/lr", stage.optimizer.learning_rate},
                  {"response_length/mean", static_cast<double>(tokens) / static_cast<double>(stage.prompts)}};
  step.times = {{"timing_s/update_actor", seconds},
                {"timing_s/step", seconds},
                {"perf/throughput", static_cast<double>(tokens) / seconds}};
  return step;
}

namespace {

int64_t end_of_turn(const model::Tokenizer& tokenizer, const std::vector<int64_t>& end_tokens) {
  if (const auto id = tokenizer.id_of("<|im_end|>")) return *id;
  if (end_tokens.empty()) throw UsageError("the tokenizer names no end token: a response could not be taught to end");
  return end_tokens.front();
}

}  // namespace

TrainData make_train_data(const std::vector<task::Problem>& problems, const model::Tokenizer& tokenizer,
                          const model::CausalLm& model, task::Scoring scoring) {
  TrainData data;
  data.end_tokens = task::all_end_tokens(model, tokenizer);
  const int64_t end = end_of_turn(tokenizer, data.end_tokens);
  for (const task::Problem& problem : problems) {
    TrainProblem tokens{task::prompt_tokens(tokenizer, problem.question), {}};
    if (!problem.solution.empty()) {
      tokens.solution = tokenizer.encode(problem.solution, /*parse_special=*/false);
      tokens.solution.push_back(end);
    }
    data.problems.push_back(std::move(tokens));
  }
  data.reward = [&problems, &tokenizer, scoring](std::size_t problem, std::span<const int64_t> response) {
    return task::reward(tokenizer.decode(response, /*skip_special=*/true), problems[problem].answer, scoring);
  };
  return data;
}

}  // namespace faultline::train
