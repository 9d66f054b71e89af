#include "task/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "site/scope.h"

namespace faultline::task {

std::vector<int64_t> prompt_tokens(const model::Tokenizer& tokenizer, const std::string& message) {
  if (!tokenizer.has_chat_template()) return tokenizer.encode(message);
  const std::vector<model::Message> conversation = {{"user", message}};
  return tokenizer.encode(tokenizer.render_chat(conversation, /*add_generation_prompt=*/true));
}

std::vector<int64_t> prompt_tokens(const model::Tokenizer& tokenizer, const Problem& problem) {
  return problem.continued ? tokenizer.encode(problem.question) : prompt_tokens(tokenizer, problem.question);
}

std::string completion_text(const model::Tokenizer& tokenizer, std::span<const int64_t> tokens) {
  model::StreamDecoder decoder(tokenizer);
  std::string text;
  for (const int64_t token : tokens) text += decoder.push(token);
  return text + decoder.finish();
}

std::vector<int64_t> all_end_tokens(const model::CausalLm& model, const model::Tokenizer& tokenizer) {
  std::vector<int64_t> all = tokenizer.end_tokens();
  all.insert(all.end(), model.config().end_tokens.begin(), model.config().end_tokens.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

namespace {

std::vector<model::Request> requests_of(const model::Tokenizer& tokenizer, std::span<const Problem> problems,
                                        const EvaluateOptions& options) {
  std::vector<model::Request> requests;
  for (std::size_t i = 0; i < problems.size(); ++i)
    requests.push_back({prompt_tokens(tokenizer, problems[i]), options.max_new_tokens,
                        options.seed * 0x9E3779B97F4A7C15u + i, options.sampling});
  return requests;
}

}  // namespace

void check_problems(const model::CausalLm& model, const model::Tokenizer& tokenizer, std::span<const Problem> problems,
                    const EvaluateOptions& options) {
  model::check_requests(requests_of(tokenizer, problems, options), model.config());
}

void check_text(std::span<const int64_t> tokens) {
  if (tokens.size() < 2) throw UsageError("perplexity needs a text of at least two tokens");
}

std::vector<Answer> evaluate(const model::CausalLm& model, const model::Tokenizer& tokenizer,
                             std::span<const Problem> problems, const EvaluateOptions& options,
                             const std::function<void(int64_t)>& advance) {
  const site::PhaseGuard phase(site::get_phase().value_or(site::Phase::kEval));
  model::GenerateOptions generation;
  generation.slots = options.slots;
  generation.fixed_batch = options.fixed_batch;
  generation.end_tokens = all_end_tokens(model, tokenizer);
  const std::vector<model::Request> requests = requests_of(tokenizer, problems, options);
  generation.on_finished = [&](std::size_t) {
    if (advance) advance(1);
  };
  model::Generator generator(model, generation);
  const std::vector<model::Completion> completions = generator.run(requests);
  std::vector<Answer> answers;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const model::Completion& completion = completions[i];
    const std::span<const int64_t> generated(completion.tokens.data(),
                                             completion.tokens.size() - (completion.ended ? 1 : 0));
    Answer answer{problems[i].id,  completion_text(tokenizer, generated), "", 0, std::ssize(completion.tokens),
                  completion.ended};
    if (problems[i].continued) answer.text.resize(std::min(answer.text.find('\n'), answer.text.size()));
    const Scoring scoring = scoring_of(problems[i], options.scoring);
    answer.extracted = extract_answer(answer.text, scoring);
    answer.reward = reward(answer.text, problems[i].answer, scoring);
    answers.push_back(std::move(answer));
  }
  return answers;
}

Perplexity perplexity(const model::CausalLm& model, std::span<const int64_t> tokens, int64_t window,
                      const std::function<void(int64_t)>& advance) {
  check_text(tokens);
  const site::PhaseGuard phase(site::get_phase().value_or(site::Phase::kEval));
  const at::NoGradGuard no_gradients;
  Perplexity result;
  double sum = 0;
  for (std::size_t first = 0; first + 1 < tokens.size(); first += static_cast<std::size_t>(window)) {
    const auto part =
        tokens.subspan(first, std::min<std::size_t>(static_cast<std::size_t>(window), tokens.size() - first));
    if (part.size() < 2) break;
    const at::Tensor row = at::tensor(at::ArrayRef<int64_t>(part.data(), part.size()), at::kLong).to(model.device());
    const at::Tensor hidden = model.hidden_states(row.unsqueeze(0)).narrow(0, 0, row.size(0) - 1);
    const at::Tensor chances = at::log_softmax(model.logits(hidden), -1, at::kFloat);
    const at::Tensor losses = -chances.gather(1, row.narrow(0, 1, row.size(0) - 1).unsqueeze(1)).to(at::kDouble);
    const double loss = losses.sum().item<double>();
    sum += loss;
    result.tokens += row.size(0) - 1;
    result.window_losses.push_back(loss / static_cast<double>(row.size(0) - 1));
    if (advance) advance(static_cast<int64_t>(part.size()));
  }
  result.mean_loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace faultline::task
