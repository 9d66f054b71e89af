#include "experiment/training_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "aqn/aqn_schema.h"
#include "base/error.h"
#include "experiment/training_census.h"
#include "experiment/training_layers.h"
#include "tap/substitution.h"
#include "task/evaluate.h"
#include "train/step.h"
#include "train/task_data.h"

namespace faultline {
namespace {

constexpr double kLeastShare = 0.8;  // of the clean accuracy, under the strongest noise
constexpr std::size_t kCheckProblems = 128;

Json as_record(const nlohmann::ordered_json& json) { return Json::parse(json.dump()); }  // keys sorted

bool acts_in(const Plan& plan, Phase phase) {
  return std::any_of(plan.rules().begin(), plan.rules().end(),
                     [&](const auto& rule) { return rule->phases.test(static_cast<std::size_t>(phase)); });
}

}  // namespace

TrainingSpec read_training(const Node& recipe, std::vector<Rule> rules) {
  TrainingSpec spec;
  const Node* train = recipe.find("train");
  if (train == nullptr) throw recipe.error("there is no section train: nothing says what to train");
  if (const Node* task = recipe.find("task")) spec.task = read_task(*task);
  spec.seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  spec.train = read_train(*train, spec.seed);
  if (const Node* aqn = recipe.find("aqn")) spec.aqn = read_aqn(*aqn);
  if (const Node* phases = recipe.find("phases")) spec.phases = *phases;
  spec.rules = std::move(rules);
  return spec;
}

struct TrainingRun::State {
  LoadedModel& loaded;
  TrainingSpec spec;
  Problems problems;
  std::vector<Problem> validation;
  TrainData data;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Injection> injection;
  std::unique_ptr<NormNoise> noise;
  TrainingProgress progress;

  State(LoadedModel& loaded, TrainingSpec spec);

  const StageSpec& last_stage() const { return spec.train.spec.stages.back(); }
  bool in_last_stage(const TrainPosition& position) const {
    return position.stage + 1 == spec.train.spec.stages.size();
  }
  void make_plan();
  void make_noise();
  TrainHooks hooks();
  double accuracy(std::span<const Problem> some) const;
  Json validate(bool faulty);
  void check_noise();
  void line(const std::string& text) const {
    if (progress.on_line) progress.on_line(text);
  }
};

TrainingRun::State::State(LoadedModel& given, TrainingSpec wanted) : loaded(given), spec(std::move(wanted)) {
  problems = load_task(spec.task);
  const auto count =
      std::min<std::size_t>(problems.test.size(), static_cast<std::size_t>(spec.train.validation_problems));
  validation.assign(problems.test.begin(), problems.test.begin() + static_cast<std::ptrdiff_t>(count));
  if (spec.task.shots > 0)
    throw UsageError("task.shots: training does not put worked examples before its questions; use train.sft");
  if (spec.aqn && last_stage().algorithm != Algorithm::kGrpo)
    throw UsageError("aqn: noise belongs to a policy that samples; SFT has none: use train.algorithm: grpo");
  data = make_train_data(problems.train, loaded.tokenizer, *loaded.model, spec.task.scoring);
  trainer = std::make_unique<Trainer>(*loaded.model, data, spec.train.spec, hooks());
  make_plan();
  make_noise();
}

void TrainingRun::State::make_plan() {
  if (spec.rules.empty()) return;
  PlanSettings settings;
  settings.seed = spec.seed;
  settings.phases = spec.phases;
  settings.total_steps = last_stage().steps;
  const int64_t rows = last_stage().micro_batch > 0 ? last_stage().micro_batch : last_stage().sequences();
  injection = std::make_unique<Injection>(
      spec.rules, settings, *loaded.model, Phase::kRollout,
      take_training_censuses(*loaded.model, trainer->parameters(), last_stage(), std::min<int64_t>(rows, 8)));
  if (last_stage().updates > 1 && acts_in(injection->plan(), Phase::kActorForward))
    throw UsageError("train.updates: with faults in actor_forward only one update a step is counted; use updates: 1");
  injection->self_check();
}

void TrainingRun::State::make_noise() {
  if (!spec.aqn) return;
  CausalLm& model = *loaded.model;
  std::vector<NoiseTarget> parameters;
  for (const CausalLm::Parameter& parameter : model.parameters())
    parameters.push_back({parameter.name, parameter.tensor, parameter.place});
  const NormSelection selection{model.config().moe.experts > 0, spec.aqn->layers, model.config().layers,
                                static_cast<int64_t>(model.norm_count())};
  noise = std::make_unique<NormNoise>(*spec.aqn, select_norms(parameters, selection), model.config().layers, spec.seed,
                                      last_stage().steps);
}

double TrainingRun::State::accuracy(std::span<const Problem> some) const {
  EvaluateOptions options;
  options.max_new_tokens = last_stage().max_new_tokens;
  options.slots = last_stage().slots;
  options.scoring = spec.task.scoring;
  options.seed = spec.seed;
  options.fixed_batch = injection != nullptr;
  double sum = 0;
  for (const Answer& answer : evaluate(*loaded.model, loaded.tokenizer, some, options)) sum += answer.reward;
  return sum / static_cast<double>(some.size());
}

Json TrainingRun::State::validate(bool faulty) {
  if (injection && faulty) injection->arm();
  if (injection && !faulty) injection->disarm();
  const double share = accuracy(validation);
  const std::string name = spec.task.name == "gsm8k" ? "openai/gsm8k" : spec.task.name;
  Json metrics = {{fmt::format("{}/{}/acc/mean@1", faulty ? "faultline/val-faulty" : "val-core", name), share},
                  {"faultline/validation_problems", validation.size()}};
  return metrics;
}

// At the strongest noise, before the first step that samples: a policy that answers nothing teaches nothing.
void TrainingRun::State::check_noise() {
  if (!noise) return;
  int64_t strongest = 0;
  for (int64_t step = 0; step < last_stage().steps; ++step)
    if (noise->sigma_at(step) > noise->sigma_at(strongest)) strongest = step;
  const auto some = std::span<const Problem>(validation).first(std::min(kCheckProblems, validation.size()));
  line(fmt::format("[aqn] {} RMSNorm weights, sigma up to {:.4g}", noise->targets(), noise->sigma_at(strongest)));
  if (some.empty()) return;
  const PhaseScope phase(Phase::kEval);
  const bool was_armed = injection != nullptr;
  if (was_armed) injection->disarm();
  const double clean = accuracy(some);
  double noisy = 0;
  {
    const std::shared_ptr<void> guard = noise->apply(strongest);
    noisy = accuracy(some);
  }
  noise->check();
  if (was_armed) injection->arm();
  line(fmt::format("[aqn] accuracy on {} problems: clean {:.3f}, under the strongest noise {:.3f}", some.size(), clean,
                   noisy));
  if (noisy < kLeastShare * clean && !spec.aqn->force)
    throw UsageError(
        fmt::format("aqn: sigma {:g} takes accuracy from {:.1f} % to {:.1f} %, below four fifths; choose a "
                    "smaller sigma or sigma_scale: relative, or say aqn.force: true",
                    noise->sigma_at(strongest), 100 * clean, 100 * noisy));
}

TrainHooks TrainingRun::State::hooks() {
  TrainHooks all;
  all.begin_step = [this](const TrainPosition& position) {
    if (in_last_stage(position) && position.step == 0) check_noise();
    if (!injection) return;
    if (!in_last_stage(position)) return injection->disarm();  // every arm starts from the same supervised model
    injection->arm();
    injection->plan().begin_step(position.step);
  };
  all.rollout = [this](const TrainPosition& position) -> std::shared_ptr<void> {
    return noise ? noise->apply(position.step) : nullptr;
  };
  all.weights_changed = [this] {
    if (injection) injection->plan().weights().new_epoch();
  };
  all.end_step = [this](const TrainPosition& position) {
    Json metrics = Json::object();
    if (!noise || !in_last_stage(position)) return metrics;
    noise->check();
    line(noise->log_line());
    return noise->record();
  };
  all.end_step = [this, own = all.end_step, errors = std::make_shared<LayerErrors>()](const TrainPosition& position) {
    Json metrics = own(position);
    if (injection && in_last_stage(position)) metrics[kLayerErrors] = errors->since_last(injection->plan());
    return metrics;
  };
  if (!validation.empty()) {
    all.validate = [this](const TrainPosition& position, bool faulty) {
      Json metrics = validate(faulty);
      if (injection && in_last_stage(position)) injection->arm();
      return metrics;
    };
    for (const Rule& rule : spec.rules)
      all.faulty_validation |= read_phases(rule.phases, spec.phases).test(static_cast<std::size_t>(Phase::kEval));
  }
  all.on_event = [this](const Json& event) {
    if (progress.on_event) progress.on_event(event);
  };
  return all;
}

TrainingRun::TrainingRun(LoadedModel& loaded, TrainingSpec spec)
    : state_(std::make_unique<State>(loaded, std::move(spec))) {}
TrainingRun::~TrainingRun() = default;

Json TrainingRun::prediction() const {
  const State& state = *state_;
  CausalLm& model = *state.loaded.model;
  int64_t parameters = 0, longest = 0;
  for (const CausalLm::Parameter& parameter : model.parameters()) parameters += parameter.tensor->numel();
  for (const TrainProblem& problem : state.data.problems)
    longest = std::max<int64_t>(longest, std::ssize(problem.prompt));
  const StageSpec& stage = state.last_stage();
  const ModelConfig& config = model.config();
  const int64_t tokens = longest + stage.max_new_tokens;
  const int64_t rows = stage.micro_batch > 0 ? stage.micro_batch : stage.sequences();
  const auto size = static_cast<double>(c10::elementSize(model.options().dtype().toScalarType()));
  const double weights = static_cast<double>(parameters) * (2 * size + 4 * sizeof(float));  // weights, gradients, state
  const double cache = static_cast<double>(2 * config.layers * config.kv_heads * config.head_size *
                                           std::min(stage.slots, stage.sequences()) * tokens) *
                       size;
  // Per token and layer, what backward needs: about 12 vectors of the hidden size and 4 of the inner one.
  const double kept =
      static_cast<double>(rows * tokens * config.layers * (12 * config.hidden + 4 * config.inner)) * size;
  const double logits =
      static_cast<double>(std::min(head_positions(model), rows * stage.max_new_tokens) * config.vocabulary) *
      (size + 3 * sizeof(float));
  Json json = {{"parameters", parameters},
               {"sequences_a_step", stage.sequences()},
               {"longest_prompt", longest},
               {"memory_bytes",
                {{"weights_and_optimizer", weights},
                 {"cache", cache},
                 {"activations", kept},
                 {"logits", logits},
                 {"total", weights + cache + kept + logits}}},
               {"flops_a_step", 2.0 * static_cast<double>(parameters * stage.sequences() * tokens) * 4}};
  if (state.injection) json["faults"] = as_record(state.injection->prediction());
  if (state.noise) json["aqn"] = {{"weights", state.noise->targets()}};
  return json;
}

TrainingOutcome TrainingRun::run(RunDirectory& directory, const TrainingProgress& progress) {
  State& state = *state_;
  state.progress = progress;
  TrainingOutcome outcome;
  outcome.results = state.trainer->run(directory);
  if (!state.injection) return outcome;
  outcome.proof = state.injection->finish();
  outcome.log = outcome.proof->log;
  directory.write_ledger(as_record(outcome.proof->report));
  return outcome;
}

}  // namespace faultline
