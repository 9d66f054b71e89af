#include "train/task_data.h"

#include "base/error.h"
#include "task/evaluate.h"

namespace faultline {
namespace {

int64_t end_of_turn(const Tokenizer& tokenizer, const std::vector<int64_t>& end_tokens) {
  if (const auto id = tokenizer.id_of("<|im_end|>")) return *id;
  if (end_tokens.empty()) throw UsageError("the tokenizer names no end token: a response could not be taught to end");
  return end_tokens.front();
}

}  // namespace

TrainData make_train_data(const std::vector<Problem>& problems, const Tokenizer& tokenizer, const CausalLm& model,
                          Scoring scoring) {
  TrainData data;
  data.end_tokens = all_end_tokens(model, tokenizer);
  const int64_t end = end_of_turn(tokenizer, data.end_tokens);
  for (const Problem& problem : problems) {
    TrainProblem tokens{prompt_tokens(tokenizer, problem.question), {}};
    if (!problem.solution.empty()) {
      tokens.solution = tokenizer.encode(problem.solution, /*parse_special=*/false);
      tokens.solution.push_back(end);
    }
    data.problems.push_back(std::move(tokens));
  }
  data.reward = [&problems, &tokenizer, scoring](std::size_t problem, std::span<const int64_t> response) {
    return reward(tokenizer.decode(response, /*skip_special=*/true), problems[problem].answer, scoring);
  };
  return data;
}

}  // namespace faultline
