#include "lab/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "aqn/aqn_section.h"
#include "base/error.h"
#include "base/json.h"
#include "lab/run_evidence.h"
#include "lab/training_state.h"
#include "tap/plan.h"
#include "tap/substitution.h"
#include "task/evaluate.h"
#include "train/actor.h"
#include "train/checkpoint.h"
#include "train/step.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

bool acts_in(const tap::Plan& plan, site::Phase phase) {
  return std::any_of(plan.rules().begin(), plan.rules().end(),
                     [&](const auto& rule) { return rule->phases.test(static_cast<std::size_t>(phase)); });
}

// What no phase of the training lets act would be missed at its end only.
void refuse_rules_of_other_phases(const tap::Plan& plan, const train::StageSpec& stage, bool validates) {
  tap::PhaseSet run;
  std::string names;
  for (const auto& [phase, runs] :
       {std::pair(site::Phase::kRollout, stage.algorithm == train::Algorithm::kGrpo),
        std::pair(site::Phase::kActorForward, true), std::pair(site::Phase::kActorBackward, true),
        std::pair(site::Phase::kRef, stage.use_kl_loss), std::pair(site::Phase::kEval, validates)}) {
    if (!runs) continue;
    run.set(static_cast<std::size_t>(phase));
    names += fmt::format("{}{}", names.empty() ? "" : ", ", site::phase_name(phase));
  }
  for (const auto& rule : plan.rules())
    if ((rule->phases & run).none())
      throw UsageError(fmt::format("rule '{}' acts in no phase that this training has: {}", rule->rule.name, names));
}

}  // namespace

TrainingSpec read_training(const Node& recipe) {
  const Node* section = recipe.find("train");
  if (section == nullptr) throw recipe.error("there is no section train: nothing says what to train");
  const auto seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  train::TrainRecipe train = train::read_train(*section, seed);
  recipe::PlanSpec plan = recipe::read_plan_spec(recipe, train.spec.stages.back().steps);
  TrainingSpec spec{{}, std::move(train), {}, std::move(plan), seed};
  if (const Node* task = recipe.find("task")) spec.task = task::read_task(*task);
  if (const Node* aqn = recipe.find("aqn")) spec.aqn = aqn::read_aqn(*aqn);
  return spec;
}

TrainingRun::State::State(LoadedModel& given, TrainingSpec wanted, train::Replicas others)
    : loaded(given), spec(std::move(wanted)), replicas(std::move(others)) {
  if (spec.task.name == "addition")
    throw UsageError("task.name: addition is a text to continue and is for evaluations; train on arithmetic or gsm8k");
  problems = task::load_task(spec.task);
  const auto count =
      std::min<std::size_t>(problems.test.size(), static_cast<std::size_t>(spec.train.validation_problems));
  validation.assign(problems.test.begin(), problems.test.begin() + static_cast<std::ptrdiff_t>(count));
  if (spec.task.shots > 0)
    throw UsageError("task.shots: training does not put worked examples before its questions; use train.sft");
  if (spec.aqn && last_stage().algorithm != train::Algorithm::kGrpo)
    throw UsageError("aqn: noise belongs to a policy that samples; SFT has none: use train.algorithm: grpo");
  data = train::make_train_data(problems.train, loaded.tokenizer, *loaded.model, spec.task.scoring);
  trainer = std::make_unique<train::Trainer>(*loaded.model, data, spec.train.spec, hooks());
  make_plan();
  make_noise();
}

void TrainingRun::State::make_plan() {
  recipe::PlanSpec plan = spec.plan;
  if (activation_noise()) plan.rules = aqn::with_noise(*spec.aqn, std::move(plan.rules));
  if (plan.rules.empty()) return;
  injection = std::make_unique<Injection>(std::move(plan), *loaded.model, site::Phase::kRollout, [&] {
    return take_training_censuses(*loaded.model, trainer->parameters(), last_stage(),
                                  std::min<int64_t>(last_stage().rows(), 8));
  });
  refuse_rules_of_other_phases(injection->plan(), last_stage(), !validation.empty());
  // Of routed calls the plan does not know which were only scored, and of shards their numbers are drawn twice.
  const bool apart = loaded.model->config().moe.experts == 0 && last_stage().shards == 1;
  if (last_stage().updates > 1 && !apart && acts_in(injection->plan(), site::Phase::kActorForward))
    throw UsageError(
        "train.updates: with faults in actor_forward, mixtures of experts and shards have one update a step; use "
        "updates: 1");
  injection->self_check();
}

double TrainingRun::State::accuracy(std::span<const task::Problem> some) const {
  task::EvaluateOptions options;
  options.max_new_tokens = last_stage().max_new_tokens;
  options.slots = last_stage().slots;
  options.scoring = spec.task.scoring;
  options.seed = spec.seed;
  options.fixed_batch = injection != nullptr;
  double sum = 0;
  for (const task::Answer& answer : task::evaluate(*loaded.model, loaded.tokenizer, some, options))
    sum += answer.reward;
  return sum / static_cast<double>(some.size());
}

Json TrainingRun::State::validate(const train::TrainPosition& position, bool faulty) {
  if (injection && faulty) arm();
  if (injection && !faulty) injection->disarm();
  double share = 0;  // every draw continues the numbers of the one before
  const bool last = in_last_stage(position) && position.step + 1 == last_stage().steps;
  const int64_t draws = faulty && last ? last_draws() : 1;  // the last is what is reported
  for (int64_t draw = 0; draw < draws; ++draw) share += accuracy(validation) / static_cast<double>(draws);
  const std::string name = spec.task.name == "gsm8k" ? "openai/gsm8k" : spec.task.name;
  Json metrics = {{fmt::format("{}/{}/acc/mean@1", faulty ? "faultline/val-faulty" : "val-core", name), share},
                  {"faultline/validation_problems", validation.size()}};
  return metrics;
}

Json TrainingRun::State::own_faults() {
  return join_evidence(before, acted ? part_evidence(injection->plan(), injection->censuses()) : Json());
}

Json TrainingRun::State::evidence() {
  Json all = Json::object();
  if (injection) {
    Json sum;
    for (const std::string& one : train::gathered(replicas, to_json_text(own_faults()))) {
      Json of_rank = Json::parse(one);
      for (const site::Phase alike :
           {site::Phase::kEval, site::Phase::kRef})  // computed by every rank; the first one's count
        if (!sum.is_null()) leave_out_phase(of_rank, alike);
      sum = join_evidence(sum, of_rank);
    }
    if (!replicas.alone() && !sum.is_null()) sum["parts"] = 1, sum["ranks"] = replicas.ranks;
    all["faults"] = sum;
  }
  if (noise) all["aqn"] = noisy;  // every rank makes the same
  return all;
}

train::TrainHooks TrainingRun::State::hooks() {
  train::TrainHooks all;
  // Before a step: the plan learns its number.
  all.begin_step = [this](const train::TrainPosition& position) {
    if (in_last_stage(position) && position.step == 0) check_noise();
    if (!injection) return;
    injection->plan().begin_step(position.step);
    if (!in_last_stage(position)) return injection->disarm();  // every arm starts from the same supervised model
    arm();
    layer_errors.begin_step(injection->plan());
  };
  // Noise on the norms lives as long as the returned guard.
  all.rollout = [this](const train::TrainPosition& position) -> std::shared_ptr<void> {
    if (!noise) return nullptr;
    train::Stopwatch watch;
    std::shared_ptr<void> guard = noise->apply(position.step);
    noise_seconds += watch.lap();
    return guard;
  };
  all.weights_changed = [this] {
    if (injection) injection->plan().weights().new_epoch(injection->plan());
  };
  all.begin_part = [this](int64_t part) {
    if (injection) faultline::tap::begin_part(injection->plan(), part);
  };
  all.replicas = replicas;
  // After a step: what the noise and the faults did goes to its metrics.
  all.end_step = [this](const train::TrainPosition& position) {
    Json metrics = Json::object();
    if (!in_last_stage(position)) return metrics;
    if (noise) {
      noise->check();
      count_noise();
      line(noise->log_line());
      metrics = noise->record();
    }
    if (injection) metrics[kLayerErrors] = layer_errors.end_step(injection->plan());
    return metrics;
  };
  if (!validation.empty()) {
    all.validate = [this](const train::TrainPosition& position, bool faulty) {
      Json metrics = validate(position, faulty);
      if (injection && in_last_stage(position)) arm();
      return metrics;
    };
    all.faulty_validation = trainer_validates_faulty();
  }
  // What a checkpoint keeps of the evidence, and what a resumed run gets back.
  all.on_event = [this](const Json& event) {
    if (progress.on_event) progress.on_event(event);
  };
  all.evidence = [this] {
    Json parts = evidence();
    parts["noise_seconds"] = noise_seconds;
    return parts;
  };
  all.resumed = [this](const Json& parts) {
    if (!parts.is_object()) return;
    if (parts.contains("faults")) before = parts["faults"];
    if (parts.contains("aqn")) noisy = parts["aqn"];
    noise_seconds = parts.value("noise_seconds", 0.0);
  };
  return all;
}

TrainingRun::TrainingRun(LoadedModel& loaded, TrainingSpec spec, train::Replicas replicas)
    : state_(std::make_unique<State>(loaded, std::move(spec), std::move(replicas))) {}
TrainingRun::~TrainingRun() = default;

Json TrainingRun::evidence() const { return state_->evidence(); }

void TrainingRun::save_start(const std::filesystem::path& folder) { state_->trainer->save_start(folder); }

TrainingOutcome TrainingRun::run(record::RunDirectory& directory, const TrainingProgress& progress) {
  State& state = *state_;
  state.progress = progress;
  TrainingOutcome outcome;
  outcome.results = state.trainer->run(directory);
  outcome.evidence = state.evidence();
  outcome.noise_seconds = state.noise_seconds;
  if (state.noise && state.noisy.value("noisy_steps", 0) == 0)
    outcome.complaints.push_back({ComplaintCode::kNoiseSilent, "", "", "aqn: not one step of the run had noise"});
  if (!state.injection) return outcome;
  outcome.proof = state.injection->finish();
  outcome.proof->complaints = missing_evidence(state.own_faults(), state.injection->plan());
  outcome.complaints.insert(outcome.complaints.end(), outcome.proof->complaints.begin(),
                            outcome.proof->complaints.end());
  outcome.proof->report["complaints"] = to_json(outcome.proof->complaints);
  outcome.proof->report["joined"] = outcome.evidence["faults"];
  outcome.log = outcome.proof->log;
  directory.write_ledger(outcome.proof->report);
  return outcome;
}

std::filesystem::path save_model(LoadedModel& loaded, const record::RunDirectory& directory) {
  const std::filesystem::path folder = directory.path() / "model";
  train::merge_lora(*loaded.model);
  if (!std::filesystem::exists(folder)) train::write_model_folder(*loaded.model, loaded.path, folder);
  return folder;
}

}  // namespace faultline::lab
