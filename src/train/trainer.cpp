#include "train/trainer.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "site/scope.h"
#include "train/checkpoint.h"
#include "train/step.h"

namespace faultline::train {

std::size_t problem_at(uint64_t seed, std::size_t stage, int64_t place, std::size_t problems) {
  const auto count = static_cast<uint64_t>(problems), index = static_cast<uint64_t>(place);
  const Permutation order =
      make_permutation(count, mix64(mix64(mix64(seed, hash64("data order")), stage), index / count));
  return permute(order, index % count);
}

uint64_t sample_key(uint64_t seed, const TrainPosition& position, int64_t sample) {
  const uint64_t step =
      mix64(mix64(seed, hash64("rollout")), mix64(position.stage, static_cast<uint64_t>(position.step)));
  return mix64(step, static_cast<uint64_t>(sample));
}

int64_t TrainSpec::total_steps() const {
  int64_t sum = 0;
  for (const StageSpec& stage : stages) sum += stage.steps;
  return sum;
}

namespace {

void check_stage(const StageSpec& stage, const TrainData& data) {
  const bool sft = stage.algorithm == Algorithm::kSft;
  if (stage.steps < 1 || stage.prompts < 1 || stage.n < 1)
    throw UsageError("train: steps, prompts and n must be at least 1");
  if (sft && (stage.n != 1 || stage.updates != 1))
    throw UsageError("train: SFT has one solution a problem: n and updates must be 1");
  if (stage.filter_groups && stage.n == 1)
    throw UsageError(
        "train.filter_groups: a group of one sample never differs, so nothing would be learnt; use n: 2 or more");
  if (stage.prompts % stage.updates != 0)
    throw UsageError(fmt::format("train: {} prompts cannot be divided into {} updates", stage.prompts, stage.updates));
  if (stage.prompts % stage.shards != 0)
    throw UsageError(fmt::format("train: {} prompts cannot be cut into {} shards", stage.prompts, stage.shards));
  const int64_t batch = stage.sequences() / stage.updates;
  if (batch % stage.shards != 0)
    throw UsageError(fmt::format("train: an update's {} sequences cannot be cut into {} shards", batch, stage.shards));
  if (stage.micro_batch < 0 || (stage.micro_batch > 0 && batch % stage.micro_batch != 0))
    throw UsageError(
        fmt::format("train: an update has {} sequences ({} prompts x {}{}); micro_batch {} does not divide "
                    "them",
                    batch, stage.prompts, stage.n, stage.updates > 1 ? fmt::format(" / {} updates", stage.updates) : "",
                    stage.micro_batch));
  if (stage.prompts > std::ssize(data.problems))
    throw UsageError(
        fmt::format("train: a step takes {} prompts, the task has {} problems", stage.prompts, data.problems.size()));
}

// GiB that the process had at most so far: of the device's memory, or its own.
double peak_memory(const at::Device& device) {
  if (!device.is_cpu()) {
    const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    return static_cast<double>(stats.allocated_bytes[0].peak) / 0x1p30;  // 0: all pools together
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 0x1p20;
}

}  // namespace

void check(const TrainSpec& spec, const TrainData& data, const model::ModelConfig& config) {
  if (spec.stages.empty()) throw UsageError("train: there is nothing to do: no stage");
  for (const StageSpec& stage : spec.stages) {
    check_stage(stage, data);
    for (std::size_t i = 0; i < data.problems.size(); ++i) {
      const TrainProblem& problem = data.problems[i];
      const bool sft = stage.algorithm == Algorithm::kSft;
      if (problem.prompt.empty()) throw UsageError(fmt::format("train: problem {} has an empty prompt", i));
      if (sft && problem.solution.empty())
        throw UsageError(fmt::format("train: problem {} has no worked solution; SFT needs one", i));
      const int64_t needed = std::ssize(problem.prompt) + (sft ? std::ssize(problem.solution) : stage.max_new_tokens);
      if (needed > config.context)
        throw UsageError(
            fmt::format("train: problem {} needs {} tokens with its response, the model's context holds {}", i, needed,
                        config.context));
    }
  }
}

struct Trainer::State {
  model::CausalLm& model;
  const TrainData& data;
  TrainSpec spec;
  TrainHooks hooks;
  AdamW optimizer;
  std::unique_ptr<model::Generator> generator;  // kept from step to step: its captured graph stays valid
  std::vector<at::Tensor> reference;            // of the stage, where its loss has a KL term
  std::string fingerprint;
  TrainPosition now;
  int64_t steps_done = 0;
  Json last_validation = Json::object();

  State(model::CausalLm& model, const TrainData& data, TrainSpec spec, TrainHooks hooks)
      : model(model),
        data(data),
        spec(std::move(spec)),
        hooks(std::move(hooks)),
        optimizer(this->spec.lora.rank > 0 ? add_lora(model, this->spec.lora, this->spec.seed) : model.parameters(),
                  this->spec.stages.front().optimizer),
        fingerprint(model_fingerprint(model, optimizer, this->spec.lora.rank > 0)) {}

  const StageSpec& stage() const { return spec.stages[now.stage]; }
  bool stage_ends() const { return now.step + 1 == stage().steps; }

  void begin_stage();
  void resume(record::RunDirectory& directory);
  void begin(record::RunDirectory& directory);
  void write_start(record::RunDirectory& directory);
  StepResult make_step();
  bool validation_is_due() const;
  bool checkpoint_is_due() const;  // after this step
  void check_finite();             // of the weights: what is saved must be good
  void validate(Json& metrics);
  void save(record::RunDirectory& directory);
  void write_event(record::RunDirectory& directory, const Json& event);
  Json run(record::RunDirectory& directory);
};

void Trainer::State::begin_stage() {
  optimizer.restart(stage().optimizer);
  reference.clear();
  if (!stage().use_kl_loss || stage().algorithm != Algorithm::kGrpo) return;
  for (const model::CausalLm::Parameter& parameter : optimizer.parameters())
    reference.push_back(parameter.tensor->detach().clone());
}

void Trainer::State::begin(record::RunDirectory& directory) {
  if (directory.events().lines() > 0) directory.events().rewind(0);
  if (spec.start) {
    const TrainState state = read_checkpoint(*spec.start, fingerprint, optimizer, reference, Moments::kLeftOut);
    if (spec.stages.size() < 2 || state.done.stage != 0 || state.done.step != stage().steps)
      throw RuntimeFailure(fmt::format("{}: it is not the end of the run's first stage", spec.start->string()));
    now = {1, 0};
    steps_done = state.steps_done;
    last_validation = state.validation;
  }
  begin_stage();
}

// Before anything was learnt, or what another run measured at the end of the first stage.
void Trainer::State::write_start(record::RunDirectory& directory) {
  Json event = {{"kind", "start"}, {"step", steps_done}, {"metrics", last_validation}};
  if (spec.start) {
    event["weights"] = checkpoint_hash(*spec.start);
  } else if (spec.validate_first) {
    validate(event["metrics"]);
  }
  if (spec.start || !event["metrics"].empty()) write_event(directory, event);
}

void Trainer::State::resume(record::RunDirectory& directory) {
  const std::filesystem::path checkpoints = directory.path() / "checkpoints";
  const auto newest = newest_checkpoint(checkpoints);
  if (!newest) return begin(directory);
  const TrainState state = read_checkpoint(*newest, fingerprint, optimizer, reference);
  if (state.done.stage >= spec.stages.size() || state.event_lines > directory.events().lines())
    throw RuntimeFailure(fmt::format("{}: it stands at stage {}, event {}; the run has {} stages and {} events",
                                     newest->string(), state.done.stage, state.event_lines, spec.stages.size(),
                                     directory.events().lines()));
  if (directory.events().lines() > state.event_lines) directory.events().rewind(state.event_lines);
  now = state.done;
  steps_done = state.steps_done;
  last_validation = state.validation;
  if (hooks.resumed) hooks.resumed(state.evidence);
  if (now.step == stage().steps && now.stage + 1 < spec.stages.size()) {
    now = {now.stage + 1, 0};
    begin_stage();
  } else {
    optimizer.set_options(stage().optimizer);  // its moments and steps are the checkpoint's
  }
}

StepResult Trainer::State::make_step() {
  const bool grpo = stage().algorithm == Algorithm::kGrpo;
  if (grpo && !generator) {
    model::GenerateOptions options;
    options.slots = std::min(stage().slots, stage().sequences() / stage().shards);
    options.end_tokens = data.end_tokens;
    generator = std::make_unique<model::Generator>(model, options);
  }
  StepContext context{model,     data,      stage(),         now,
                      spec.seed, optimizer, generator.get(), reference.empty() ? nullptr : &reference,
                      hooks};
  return grpo ? grpo_step(context) : sft_step(context);
}

bool Trainer::State::validation_is_due() const {  // the last step of a stage always: docs/lessons.md 29
  return stage_ends() || (spec.validate_every > 0 && (now.step + 1) % spec.validate_every == 0);
}

bool Trainer::State::checkpoint_is_due() const {
  const int64_t done = steps_done + 1;
  return spec.checkpoint_every > 0 && (done % spec.checkpoint_every == 0 || done == spec.total_steps());
}

void Trainer::State::check_finite() {
  if (optimizer.flat_masters().isfinite().all().item<bool>()) return;
  throw NonFiniteError(
      fmt::format("step {}: the update left weights that are not finite, at a learning rate of {:g}; "
                  "they are not saved",
                  now.step + 1, stage().optimizer.learning_rate));
}

void Trainer::State::validate(Json& metrics) {
  if (!hooks.validate) return;
  const site::PhaseGuard phase(site::Phase::kEval);
  last_validation = hooks.validate(now, /*faulty=*/false);
  if (hooks.faulty_validation) last_validation.update(hooks.validate(now, /*faulty=*/true));
  metrics.update(last_validation);
}

void Trainer::State::write_event(record::RunDirectory& directory, const Json& event) {
  directory.events().append(event);
  directory.events().flush_step();
  if (hooks.on_event) hooks.on_event(event);
}

void Trainer::State::save(record::RunDirectory& directory) {
  const TrainState state{{now.stage, now.step + 1},
                         steps_done,
                         directory.events().lines(),
                         last_validation,
                         hooks.evidence ? hooks.evidence() : Json()};  // of all ranks: each takes part
  if (!hooks.replicas.is_first()) return;
  write_checkpoint(directory.checkpoint_path(steps_done), state, fingerprint, optimizer, reference);
  retain_checkpoints(directory.path() / "checkpoints", spec.keep);
}

Json Trainer::State::run(record::RunDirectory& directory) {
  resume(directory);
  const int64_t total = spec.total_steps();
  if (directory.events().lines() == 0) write_start(directory);
  while (steps_done < total) {
    if (hooks.begin_step) hooks.begin_step(now);
    const bool due = checkpoint_is_due();
    StepResult result;
    try {
      result = make_step();
      if (due) check_finite();
    } catch (const NonFiniteError& error) {
      write_event(directory, {{"kind", "stopped"}, {"step", steps_done + 1}, {"reason", error.what()}});
      throw;
    }
    result.times["perf/max_memory_allocated_gb"] = peak_memory(model.device());
    if (hooks.end_step) result.metrics.update(hooks.end_step(now));
    if (validation_is_due()) validate(result.metrics);
    ++steps_done;
    write_event(directory, {{"kind", "step"},
                            {"stage", stage().algorithm == Algorithm::kSft ? "sft" : "grpo"},
                            {"step", steps_done},
                            {"metrics", result.metrics},
                            {"times", result.times}});
    if (due) save(directory);
    if (steps_done == total) break;
    if (stage_ends()) {
      now = {now.stage + 1, 0};
      begin_stage();
    } else {
      ++now.step;
    }
  }
  directory.write_summary({.step_reached = steps_done,
                           .steps_planned = total,
                           .step_evaluated = hooks.validate ? std::optional(steps_done) : std::nullopt,
                           .results = last_validation});
  return last_validation;
}

Trainer::Trainer(model::CausalLm& model, const TrainData& data, TrainSpec spec, TrainHooks hooks) {
  check(spec, data, model.config());
  state_ = std::make_unique<State>(model, data, std::move(spec), std::move(hooks));
}
Trainer::~Trainer() = default;

const std::vector<model::CausalLm::Parameter>& Trainer::parameters() const { return state_->optimizer.parameters(); }

Json Trainer::run(record::RunDirectory& directory) { return state_->run(directory); }

void Trainer::save_start(const std::filesystem::path& folder) {
  const State& state = *state_;
  const TrainState done{{state.now.stage, state.now.step + 1}, state.steps_done, 0, state.last_validation};
  write_checkpoint(folder, done, state.fingerprint, state_->optimizer, {}, Moments::kLeftOut);
}

}  // namespace faultline::train
