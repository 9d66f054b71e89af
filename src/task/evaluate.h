// How well a model does: the share of a task's problems that it answers rightly, and the perplexity of a text. The same
// prompt, sampling and scorer serve clean and faulty runs; only the text before the end of turn is scored. Both are in
// phase eval where no other is named.
#pragma once

#include <functional>
#include <span>

#include "model/generate.h"
#include "model/tokenizer/tokenizer.h"
#include "task/task.h"

namespace faultline::task {

struct EvaluateOptions {
  int64_t max_new_tokens = 64;
  int64_t slots = 32;
  model::Sampling sampling{.temperature = 0};
  Scoring scoring = Scoring::kStrict;
  uint64_t seed = 0;
  bool fixed_batch = false;
};

struct Answer {
  std::string id, text, extracted;
  double reward = 0;
  int64_t tokens = 0;
  bool ended = false;
};

std::vector<int64_t> prompt_tokens(const model::Tokenizer& tokenizer,
                                   const std::string& message);  // through the chat template
std::vector<int64_t> prompt_tokens(const model::Tokenizer& tokenizer,
                                   const Problem& problem);  // as the problem wants it
// Special tokens left out; U+FFFD for what is no token.
std::string completion_text(const model::Tokenizer& tokenizer, std::span<const int64_t> tokens);
std::vector<int64_t> all_end_tokens(const model::CausalLm& model, const model::Tokenizer& tokenizer);

// What evaluate and perplexity would refuse, before anything is run: a problem or a text that is too long or too short.
void check_problems(const model::CausalLm& model, const model::Tokenizer& tokenizer, std::span<const Problem> problems,
                    const EvaluateOptions& options);
void check_text(std::span<const int64_t> tokens);

std::vector<Answer> evaluate(const model::CausalLm& model, const model::Tokenizer& tokenizer,
                             std::span<const Problem> problems, const EvaluateOptions& options,
                             const std::function<void(int64_t)>& advance = {});

struct Perplexity {
  double mean_loss = 0;  // nats a token
  int64_t tokens = 0;
  std::vector<double> window_losses;  // mean of each window, for paired comparisons
};
// Windows of `window` tokens, each scored from its second token on.
Perplexity perplexity(const model::CausalLm& model, std::span<const int64_t> tokens, int64_t window,
                      const std::function<void(int64_t)>& advance = {});

}  // namespace faultline::task
