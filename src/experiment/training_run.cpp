#include "experiment/training_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "aqn/activation_noise.h"
#include "aqn/aqn_schema.h"
#include "base/error.h"
#include "experiment/run_evidence.h"
#include "experiment/training_census.h"
#include "experiment/training_layers.h"
#include "tap/step_part.h"
#include "tap/substitution.h"
#include "task/evaluate.h"
#include "train/step.h"
#include "train/task_data.h"

namespace faultline {
namespace {

constexpr double kLeastShare = 0.8;  // of the clean accuracy, under the strongest noise
constexpr std::size_t kCheckProblems = 128;
constexpr double kCpuRate = 5e10, kGpuRate = 1.5e14;  // operations a second that such models sustain, roughly

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
  Json before;                  // evidence of the parts before this one
  Json noisy = Json::object();  // what the noise on norms did in this part and those before
  bool acted = false;           // the plan was armed in this part
  double noise_seconds = 0;

  Replicas replicas;

  State(LoadedModel& loaded, TrainingSpec spec, Replicas replicas);

  const StageSpec& last_stage() const { return spec.train.spec.stages.back(); }
  bool in_last_stage(const TrainPosition& position) const {
    return position.stage + 1 == spec.train.spec.stages.size();
  }
  void make_plan();
  void make_noise();
  TrainHooks hooks();
  void arm() {
    injection->arm();
    acted = true;
  }
  bool activation_noise() const { return spec.aqn && spec.aqn->sites != AqnSites::kNormWeight; }
  double strongest_sigma(int64_t* at = nullptr) const;
  double accuracy_under_noise(std::span<const Problem> some, int64_t strongest);
  void count_noise();
  Json evidence();
  bool trainer_validates_faulty() const {
    return std::any_of(spec.rules.begin(), spec.rules.end(), [&](const Rule& rule) {
      return read_phases(rule.phases, spec.phases).test(static_cast<std::size_t>(Phase::kEval));
    });
  }
  double accuracy(std::span<const Problem> some) const;
  Json validate(const TrainPosition& position, bool faulty);
  void check_noise();
  void line(const std::string& text) const {
    if (progress.on_line) progress.on_line(text);
  }
};

TrainingRun::State::State(LoadedModel& given, TrainingSpec wanted, Replicas others)
    : loaded(given), spec(std::move(wanted)), replicas(std::move(others)) {
  if (spec.task.name == "addition")
    throw UsageError("task.name: addition is a text to continue and is for evaluations; train on arithmetic or gsm8k");
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
  std::vector<Rule> rules = spec.rules;
  if (activation_noise()) {
    check_noise_layers(spec.aqn->layers, loaded.model->config().layers);
    rules = with_noise(*spec.aqn, std::move(rules));
  }
  if (rules.empty()) return;
  PlanSettings settings;
  settings.seed = spec.seed;
  settings.phases = spec.phases;
  settings.total_steps = last_stage().steps;
  const int64_t rows = last_stage().rows();
  const Censuses censuses =
      take_training_censuses(*loaded.model, trainer->parameters(), last_stage(), std::min<int64_t>(rows, 8));
  injection = std::make_unique<Injection>(rules, settings, *loaded.model, Phase::kRollout, censuses);
  if (last_stage().updates > 1 && acts_in(injection->plan(), Phase::kActorForward))
    throw UsageError("train.updates: with faults in actor_forward only one update a step is counted; use updates: 1");
  if (!activation_noise()) return injection->self_check();
  for (Rule& rule : rules)  // a schedule may be silent at first; the canary must not be
    if (rule.name == kNoiseRule) rule = constant_noise_rule(*spec.aqn, strongest_sigma());
  Injection(rules, settings, *loaded.model, Phase::kRollout, censuses).self_check();
}

void TrainingRun::State::make_noise() {
  if (!spec.aqn || activation_noise()) return;
  CausalLm& model = *loaded.model;
  const bool moe = model.config().moe.experts > 0;
  if (spec.aqn->exclude_router_input && !moe)
    throw UsageError("aqn.exclude_router_input: the model has no router; leave it out");
  std::vector<NoiseTarget> parameters;
  for (const CausalLm::Parameter& parameter : model.parameters())
    parameters.push_back({parameter.name, parameter.tensor, parameter.place});
  const NormSelection selection{moe && !spec.aqn->exclude_router_input, spec.aqn->layers, model.config().layers,
                                static_cast<int64_t>(model.norm_count()), spec.aqn->exclude_router_input};
  noise = std::make_unique<NormNoise>(*spec.aqn, select_norms(parameters, selection), model.config().layers, spec.seed,
                                      last_stage().steps);
}

double TrainingRun::State::strongest_sigma(int64_t* at) const {
  double strongest = 0;
  for (int64_t step = 0; step < last_stage().steps; ++step) {
    const double sigma = strength_at(spec.aqn->schedule, step, last_stage().steps);
    if (sigma > strongest && at != nullptr) *at = step;
    strongest = std::max(strongest, sigma);
  }
  if (strongest == 0)
    throw UsageError("aqn: the schedule gives sigma 0 at every step; a run without noise would be reported as noisy");
  return strongest;
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

Json TrainingRun::State::validate(const TrainPosition& position, bool faulty) {
  if (injection && faulty) arm();
  if (injection && !faulty) injection->disarm();
  double share = 0;  // every draw continues the numbers of the one before
  const bool last = in_last_stage(position) && position.step + 1 == last_stage().steps;
  const int64_t draws = faulty && last ? spec.train.validation_draws : 1;  // the last is what is reported
  for (int64_t draw = 0; draw < draws; ++draw) share += accuracy(validation) / static_cast<double>(draws);
  const std::string name = spec.task.name == "gsm8k" ? "openai/gsm8k" : spec.task.name;
  Json metrics = {{fmt::format("{}/{}/acc/mean@1", faulty ? "faultline/val-faulty" : "val-core", name), share},
                  {"faultline/validation_problems", validation.size()}};
  return metrics;
}

double TrainingRun::State::accuracy_under_noise(std::span<const Problem> some, int64_t strongest) {
  if (noise) {
    const PhaseScope phase(Phase::kEval);
    const std::shared_ptr<void> guard = noise->apply(strongest);
    const double share = accuracy(some);
    noise->check();
    return share;
  }
  PlanSettings settings;
  settings.seed = spec.seed;
  Injection alone({constant_noise_rule(*spec.aqn, strongest_sigma())}, settings, *loaded.model, Phase::kRollout,
                  injection->censuses());
  const PhaseScope phase(Phase::kRollout);
  alone.arm();
  const double share = accuracy(some);
  if (const Injection::Proof proof = alone.finish(); !proof.complaints.empty())
    throw EvidenceError("aqn: " + proof.complaints.front());
  return share;
}

// At the strongest noise, before the first step that samples: a policy that answers nothing teaches nothing.
void TrainingRun::State::check_noise() {
  if (!spec.aqn) return;
  int64_t strongest = 0;
  const double sigma = strongest_sigma(&strongest);
  const auto some = std::span<const Problem>(validation).first(std::min(kCheckProblems, validation.size()));
  line(noise ? fmt::format("[aqn] {} RMSNorm weights, sigma up to {:.4g}", noise->targets(), sigma)
             : fmt::format("[aqn] noise on {}, sigma up to {:.4g}",
                           spec.aqn->sites == AqnSites::kLayerOutput ? "layer outputs" : "matrix products", sigma));
  if (const std::string note = schedule_note(spec.aqn->schedule, last_stage().steps); !note.empty())
    line("[aqn] " + note);
  if (some.empty()) return;
  if (injection) injection->disarm();
  double clean = 0;
  {
    const PhaseScope phase(Phase::kEval);
    clean = accuracy(some);
  }
  const double noisy_share = accuracy_under_noise(some, strongest);
  line(fmt::format("[aqn] accuracy on {} problems: clean {:.3f}, under the strongest noise {:.3f}", some.size(), clean,
                   noisy_share));
  if (noisy_share < kLeastShare * clean && !spec.aqn->force)
    throw UsageError(
        fmt::format("aqn: sigma {:g} takes accuracy from {:.1f} % to {:.1f} %, below four fifths; choose a "
                    "smaller sigma or sigma_scale: relative, or say aqn.force: true",
                    sigma, 100 * clean, 100 * noisy_share));
}

void TrainingRun::State::count_noise() {
  const NoiseApplied& last = noise->last();
  const bool sounded = last.sigma > 0;
  const auto add = [&](const char* key, int64_t by) { noisy[key] = noisy.value(key, int64_t{0}) + by; };
  add("steps", 1), add("noisy_steps", sounded ? 1 : 0), add("changed", last.changed);
  noisy["weights"] = last.weights;
  if (!sounded) return;
  noisy["sum_of_measured_over_expected"] =
      noisy.value("sum_of_measured_over_expected", 0.0) + last.measured / last.expected;
}

Json TrainingRun::State::evidence() {
  Json all = Json::object();
  if (injection)
    all["faults"] = join_evidence(before, acted ? part_evidence(injection->plan(), injection->censuses()) : Json());
  if (noise) all["aqn"] = noisy;
  return all;
}

TrainHooks TrainingRun::State::hooks() {
  TrainHooks all;
  all.begin_step = [this](const TrainPosition& position) {
    if (in_last_stage(position) && position.step == 0) check_noise();
    if (!injection) return;
    if (!in_last_stage(position)) return injection->disarm();  // every arm starts from the same supervised model
    arm();
    injection->plan().begin_step(position.step);
  };
  all.rollout = [this](const TrainPosition& position) -> std::shared_ptr<void> {
    if (!noise) return nullptr;
    Stopwatch watch;
    std::shared_ptr<void> guard = noise->apply(position.step);
    noise_seconds += watch.lap();
    return guard;
  };
  all.weights_changed = [this] {
    if (injection) injection->plan().weights().new_epoch();
  };
  all.begin_part = [this](int64_t part) {
    if (injection) faultline::begin_part(injection->plan(), part);
  };
  all.replicas = replicas;
  all.end_step = [this](const TrainPosition& position) {
    Json metrics = Json::object();
    if (!noise || !in_last_stage(position)) return metrics;
    noise->check();
    count_noise();
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
      Json metrics = validate(position, faulty);
      if (injection && in_last_stage(position)) arm();
      return metrics;
    };
    all.faulty_validation = trainer_validates_faulty();
  }
  all.on_event = [this](const Json& event) {
    if (progress.on_event) progress.on_event(event);
  };
  all.evidence = [this] { return evidence(); };
  all.resumed = [this](const Json& parts) {
    if (!parts.is_object()) return;
    if (parts.contains("faults")) before = parts["faults"];
    if (parts.contains("aqn")) noisy = parts["aqn"];
  };
  return all;
}

TrainingRun::TrainingRun(LoadedModel& loaded, TrainingSpec spec, Replicas replicas)
    : state_(std::make_unique<State>(loaded, std::move(spec), std::move(replicas))) {}
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
  const int64_t rows = stage.rows();
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
  // At most: every response as long as it may be. Forward 2, backward 4, sampling 2 operations a parameter and token.
  const double token = 2.0 * static_cast<double>(parameters);
  double all = json["flops_a_step"].get<double>() * static_cast<double>(stage.steps);
  for (const StageSpec& one : state.spec.train.spec.stages)
    if (one.algorithm == Algorithm::kSft && &one != &stage)
      all += token * 3 * static_cast<double>(one.steps * one.sequences() * tokens);
  const int64_t validations =
      1 + std::ssize(state.spec.train.spec.stages) +
      (state.spec.train.spec.validate_every > 0 ? stage.steps / state.spec.train.spec.validate_every : 0);
  all += token * static_cast<double>(validations * std::ssize(state.validation) * tokens) *
         static_cast<double>(1 + (state.trainer_validates_faulty() ? state.spec.train.validation_draws : 0));
  const double rate = model.device().is_cpu() ? kCpuRate : kGpuRate;
  json["seconds_a_step"] = json["flops_a_step"].get<double>() / rate;
  json["seconds"] = all / rate;
  if (state.injection) json["faults"] = as_record(state.injection->prediction());
  if (state.noise) json["aqn"] = {{"weights", state.noise->targets()}};
  return json;
}

Json TrainingRun::evidence() const { return state_->evidence(); }

void TrainingRun::save_start(const std::filesystem::path& folder) { state_->trainer->save_start(folder); }

TrainingOutcome TrainingRun::run(RunDirectory& directory, const TrainingProgress& progress) {
  State& state = *state_;
  state.progress = progress;
  TrainingOutcome outcome;
  outcome.results = state.trainer->run(directory);
  outcome.evidence = state.evidence();
  outcome.noise_seconds = state.noise_seconds;
  if (state.noise && state.noisy.value("noisy_steps", 0) == 0)
    outcome.complaints.emplace_back("aqn: not one step of the run had noise");
  if (!state.injection) return outcome;
  outcome.proof = state.injection->finish();
  outcome.proof->complaints = missing_evidence(outcome.evidence["faults"], state.injection->plan());
  outcome.complaints.insert(outcome.complaints.end(), outcome.proof->complaints.begin(),
                            outcome.proof->complaints.end());
  outcome.proof->report["complaints"] = outcome.proof->complaints;
  outcome.proof->report["joined"] = outcome.evidence["faults"];
  outcome.log = outcome.proof->log;
  directory.write_ledger(as_record(outcome.proof->report));
  return outcome;
}

}  // namespace faultline
