// The update that both algorithms share: micro-batches, their gradients, one optimizer step, and what happens where a
// number is not finite.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "site/scope.h"
#include "train/non_finite.h"
#include "train/step.h"

namespace faultline::train {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Passed {
  at::Tensor loss;  // () fp64
  TokenScores scores;
};

// This rank's share, gradients at the optimizer. first_part: the number of the first batch among the parts of the whole
// step.
Passed pass(StepContext& context, const std::vector<SequenceBatch>& batches, const BatchLoss& loss,
            std::size_t first_part) {
  Passed all;
  all.loss = at::zeros({}, context.model.options().dtype(at::kDouble));
  std::vector<at::Tensor> log_probabilities, entropies;
  const Replicas& replicas = context.hooks.replicas;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (!replicas.owns(i, batches.size())) {  // zeros, where the sum over ranks has somebody else's numbers
      const at::Tensor none = at::zeros(batches[i].targets.sizes(), context.model.options().dtype(at::kFloat));
      log_probabilities.push_back(none), entropies.push_back(none);
      continue;
    }
    begin_part(context, static_cast<int64_t>(first_part + i));
    BackwardResult result;
    {
      const site::PhaseGuard phase(site::Phase::kActorForward);  // the sums below are the trainer's own arithmetic
      result = backward_tokens(context.model, batches[i], context.stage.sampling.temperature,
                               [&](const at::Tensor& now, int64_t first) { return loss(i, now, first); });
    }
    context.optimizer.take_gradients();
    all.loss += result.loss;
    log_probabilities.push_back(result.scores.log_probabilities), entropies.push_back(result.scores.entropies);
  }
  begin_part(context, 0);
  all.scores = {at::cat(log_probabilities).cpu(), at::cat(entropies).cpu()};
  return all;
}

void exchange(StepContext& context, Passed& own) {
  const Replicas& replicas = context.hooks.replicas;
  own.loss = summed(replicas, own.loss);
  sum_in_place(replicas, context.optimizer.flat_gradients());
  own.scores = {summed(replicas, own.scores.log_probabilities), summed(replicas, own.scores.entropies)};
}

// What the first rank that found something found; "" where none did. All ranks ask.
std::string first_finding(const Replicas& replicas, const std::optional<std::string>& own) {
  const std::vector<std::string> all = gathered(replicas, own.value_or(""));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) return replicas.alone() ? all[rank] : fmt::format("{} (rank {})", all[rank], rank);
  return "";
}

// Runs the step again and watches. Without shards faults draw other numbers then, so a bad number may not come back;
// that is said.
[[noreturn]] void explain(StepContext& context, const std::vector<SequenceBatch>& batches, const BatchLoss& loss,
                          std::size_t first_part, const std::string& what) {
  std::optional<std::string> found;
  {
    const NonFiniteWatch watch;
    pass(context, batches, loss, first_part);
    found = watch.first();
  }
  context.optimizer.drop_gradients();
  const std::string origin = first_finding(context.hooks.replicas, found);
  throw NonFiniteError(fmt::format(
      "{}; {}. The weights are those of the step before; no checkpoint has weights that are not finite", what,
      origin.empty() ? "run again, every operator's result was finite: a transient fault, or a rare draw of one"
                     : "the first operator whose result is not finite: " + origin));
}

}  // namespace

void begin_part(const StepContext& context, int64_t part) {
  if (context.stage.shards > 1 && context.hooks.begin_part) context.hooks.begin_part(part);
}

Stopwatch::Stopwatch() : last_(seconds_now()) {}
double Stopwatch::lap() {
  const double now = seconds_now();
  return now - std::exchange(last_, now);
}

UpdateResult update(StepContext& context, const std::vector<SequenceBatch>& batches, const BatchLoss& loss,
                    std::size_t first_part) {
  Passed passed = pass(context, batches, loss, first_part);
  exchange(context, passed);
  UpdateResult result;
  result.loss = passed.loss.item<double>();
  result.scores = passed.scores;
  if (!std::isfinite(result.loss)) {
    context.optimizer.drop_gradients();
    explain(context, batches, loss, first_part,
            fmt::format("step {}: the loss is {}", context.position.step + 1, result.loss));
  }
  try {
    result.gradient_norm = context.optimizer.step();
  } catch (const NonFiniteError& error) {
    explain(context, batches, loss, first_part, error.what());
  }
  if (context.hooks.weights_changed) context.hooks.weights_changed();
  return result;
}

}  // namespace faultline::train
