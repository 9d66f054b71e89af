// What a training run will need, before its first step: memory, operations, seconds, and the sites of its faults.
#include <algorithm>

#include "base/json.h"
#include "lab/training_memory.h"
#include "lab/training_state.h"
#include "train/actor.h"

namespace faultline::lab {
namespace {

constexpr double kCpuRate = 5e10, kGpuRate = 1.5e14;  // operations a second that such models sustain, roughly

}  // namespace

Json TrainingRun::prediction() const {
  const State& state = *state_;
  model::CausalLm& model = *state.loaded.model;
  int64_t longest = 0;
  for (const train::TrainProblem& problem : state.data.problems)
    longest = std::max<int64_t>(longest, std::ssize(problem.prompt));
  const train::StageSpec& stage = state.last_stage();
  const int64_t tokens = longest + stage.max_new_tokens, parameters = parameters_of(model.config());
  const TrainingMemory memory = training_memory(model.config(), model.options().dtype().toScalarType(),
                                                state.spec.train.spec, tokens, train::head_positions(model));
  Json json = {{"parameters", parameters},
               {"sequences_a_step", stage.sequences()},
               {"longest_prompt", longest},
               {"memory_bytes",
                {{"weights_and_optimizer", memory.weights_and_optimizer},
                 {"cache", memory.cache},
                 {"activations", memory.activations},
                 {"logits", memory.logits},
                 {"total", memory.total()}}},
               {"flops_a_step", 2.0 * static_cast<double>(parameters * stage.sequences() * tokens) * 4}};
  // At most: every response as long as it may be. Forward 2, backward 4, sampling 2 operations a parameter and token.
  const double token = 2.0 * static_cast<double>(parameters);
  double all = json["flops_a_step"].get<double>() * static_cast<double>(stage.steps);
  for (const train::StageSpec& one : state.spec.train.spec.stages)
    if (one.algorithm == train::Algorithm::kSft && &one != &stage)
      all += token * 3 * static_cast<double>(one.steps * one.sequences() * tokens);
  const int64_t validations =
      1 + std::ssize(state.spec.train.spec.stages) +
      (state.spec.train.spec.validate_every > 0 ? stage.steps / state.spec.train.spec.validate_every : 0);
  all += token * static_cast<double>(validations * std::ssize(state.validation) * tokens) *
         static_cast<double>(1 + (state.trainer_validates_faulty() ? state.last_draws() : 0));
  const double rate = model.device().is_cpu() ? kCpuRate : kGpuRate;
  json["seconds_a_step"] = json["flops_a_step"].get<double>() / rate;
  json["seconds"] = all / rate;
  if (state.injection) json["faults"] = state.injection->prediction();
  if (state.noise) json["aqn"] = {{"weights", state.noise->targets()}};
  return json;
}

}  // namespace faultline::lab
