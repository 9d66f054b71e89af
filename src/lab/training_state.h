// What a training run holds while it lives. The class's own header shows none of it; its parts are in training_run.cpp
// (plan, hooks, validation, evidence), training_noise.cpp (AQN) and training_prediction.cpp (what it will cost).
#pragma once

#include <span>

#include "base/json.h"
#include "lab/injection.h"
#include "lab/training_run.h"
#include "tap/plan.h"
#include "train/trainer.h"

namespace faultline::lab {

// What a training step runs, by phase and kind of forward: the rollout's prefill and decoding, the actor's body and
// head with their backward, the reference's, the validation's. Evidence of a faulty training is held against it.

// trained: the parameters that require gradients, as they do while a Trainer lives. rows: sequences of a forward.
tap::Censuses take_training_censuses(const model::CausalLm& model,
                                     const std::vector<model::CausalLm::Parameter>& trained,
                                     const train::StageSpec& stage, int64_t rows);

inline constexpr const char* kLayerErrors = "faultline/layer_error";  // the metric of LayerErrors

struct TrainingRun::State {
  LoadedModel& loaded;
  TrainingSpec spec;
  task::Problems problems;
  std::vector<task::Problem> validation;
  train::TrainData data;
  std::unique_ptr<train::Trainer> trainer;
  std::unique_ptr<Injection> injection;
  std::unique_ptr<aqn::NormNoise> noise;
  tap::LayerErrors layer_errors;
  TrainingProgress progress;
  Json before;                  // evidence of the parts before this one
  Json noisy = Json::object();  // what the noise on norms did in this part and those before
  bool acted = false;           // the plan was armed in this part
  double noise_seconds = 0;

  train::Replicas replicas;

  State(LoadedModel& loaded, TrainingSpec spec, train::Replicas replicas);

  const train::StageSpec& last_stage() const { return spec.train.spec.stages.back(); }
  bool in_last_stage(const train::TrainPosition& position) const {
    return position.stage + 1 == spec.train.spec.stages.size();
  }
  void make_plan();
  void make_noise();
  train::TrainHooks hooks();
  void arm() {
    injection->arm();
    acted = true;
  }
  bool activation_noise() const { return spec.aqn && spec.aqn->sites != aqn::AqnSites::kNormWeight; }
  int64_t noisiest_step() const;
  double accuracy_under_noise(std::span<const task::Problem> some, int64_t step);
  void count_noise();
  Json own_faults();  // of this process, and of the parts before this one
  Json evidence();    // of all ranks, each of which must ask
  bool in_evaluations(const numeric::Rule& rule) const {
    return tap::read_phases(rule.phases, spec.plan.settings.phases).test(static_cast<std::size_t>(site::Phase::kEval));
  }
  bool trainer_validates_faulty() const {
    return std::any_of(spec.plan.rules.begin(), spec.plan.rules.end(),
                       [&](const numeric::Rule& rule) { return in_evaluations(rule); });
  }
  // Of the last validation under the faults; one where they draw nothing.
  int64_t last_draws() const {
    const bool same = std::all_of(spec.plan.rules.begin(), spec.plan.rules.end(), [&](const numeric::Rule& rule) {
      return !in_evaluations(rule) || numeric::always_does_the_same(rule);
    });
    return same ? 1 : spec.train.validation_draws;
  }
  double accuracy(std::span<const task::Problem> some) const;
  Json validate(const train::TrainPosition& position, bool faulty);
  void check_noise();
  void line(const std::string& text) const {
    if (progress.on_line) progress.on_line(text);
  }
};

}  // namespace faultline::lab
