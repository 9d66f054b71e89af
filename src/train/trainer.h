// Training: supervised fine-tuning and GRPO over one model, in the process that also samples from it. The decisions
// that shaped it: every random number and the order of the data follow from (seed, stage, step), so a checkpoint needs
// no generator state and a resumed run repeats the interrupted one to the bit; the trainer knows nothing of faults, it
// only names the phase it is in and calls its hooks; times are kept apart from what was computed, so that the records
// of two equal runs differ in times alone.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config/config.h"
#include "model/generate.h"
#include "model/tokenizer/tokenizer.h"
#include "record/run_directory.h"
#include "task/task.h"
#include "train/actor.h"
#include "train/adamw.h"
#include "train/grpo.h"
#include "train/replicas.h"

namespace faultline::train {

struct TrainProblem {
  std::vector<int64_t> prompt;    // through the chat template
  std::vector<int64_t> solution;  // the end of turn included; empty: no example to learn from
};
struct TrainData {
  std::vector<TrainProblem> problems;
  std::vector<int64_t> end_tokens;
  // Of a response to problem i, the end of turn left out.
  std::function<double(std::size_t problem, std::span<const int64_t> response)> reward;
};

enum class Algorithm { kSft, kGrpo };

struct StageSpec {
  Algorithm algorithm = Algorithm::kGrpo;
  int64_t steps = 40;
  int64_t prompts = 96;     // of a step
  int64_t n = 8;            // responses to each; 1 for SFT
  int64_t micro_batch = 0;  // sequences of a forward and backward; 0: all. Must divide prompts * n / updates
  int64_t shards = 1;       // Note [Shards]; must divide prompts
  AdamWOptions optimizer;

  // GRPO
  int64_t updates = 1;  // of the weights in a step, on as many parts of its samples
  bool norm_adv_by_std = true, filter_groups = false, use_kl_loss = false;
  double kl_coefficient = 0.001;
  KlEstimator kl = KlEstimator::kK3;
  ClipOptions clip;
  Aggregation aggregation = Aggregation::kTokenMean;
  double importance_limit = 0;  // truncated importance sampling; 0: off
  model::Sampling sampling;
  int64_t max_new_tokens = 64;
  int64_t slots = 64;

  int64_t sequences() const { return prompts * n; }
  int64_t rows() const {  // of a forward and backward
    return micro_batch > 0 ? micro_batch : sequences() / updates / shards;
  }
};

struct TrainSpec {
  std::vector<StageSpec> stages;  // SFT first, then GRPO; each with a fresh optimizer
  LoraSpec lora;
  uint64_t seed = 0;
  int64_t validate_every = 0;  // steps; 0: the first and the last only
  bool validate_first = true;  // before anything is learnt
  // Of the end of the first stage, made by save_start() of a run that had no other: the run begins behind it.
  std::optional<std::filesystem::path> start;
  int64_t checkpoint_every = 10;
  int64_t keep = 2;  // latest checkpoints

  int64_t total_steps() const;
};
// UsageError: sizes that do not divide, more prompts than problems, prompts too long, a stage without steps …
void check(const TrainSpec& spec, const TrainData& data, const model::ModelConfig& config);

struct TrainPosition {
  std::size_t stage = 0;
  int64_t step = 0;  // of the stage, from 0
};

// How faults, noise and validation take part; each may be missing.
struct TrainHooks {
  std::function<void(const TrainPosition&)> begin_step;
  std::function<std::shared_ptr<void>(const TrainPosition&)> rollout;  // what lives as long as the sampling does
  std::function<void()> weights_changed;                               // after each update
  std::function<void(int64_t part)> begin_part;  // of a step that is cut into shards: a rollout's or a micro-batch
  std::function<Json(const TrainPosition&, bool faulty)> validate;  // metrics; in phase eval
  bool faulty_validation = false;                                   // validate also with the faults
  std::function<Json(const TrainPosition&)> end_step;               // metrics to add
  std::function<void(const Json& event)> on_event;                  // every event, as it is written
  std::function<Json()> evidence;                   // what has happened so far; kept with every checkpoint
  std::function<void(const Json& before)> resumed;  // the evidence of the parts before this one
  Replicas replicas;                                // that train together; this one alone where there are no others
};

class Trainer {
 public:
  Trainer(model::CausalLm& model, const TrainData& data, TrainSpec spec, TrainHooks hooks);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const std::vector<model::CausalLm::Parameter>& parameters() const;  // that are trained

  // From the newest checkpoint of the run, or from the start. Returns the final metrics.
  Json run(record::RunDirectory& directory);
  // The weights after run(), for other runs to start from.
  void save_start(const std::filesystem::path& folder);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The problem at a place in the endless order of a stage's data: every epoch is a permutation of its own.
std::size_t problem_at(uint64_t seed, std::size_t stage, int64_t place, std::size_t problems);
// The random key of a sample.
uint64_t sample_key(uint64_t seed, const TrainPosition& position, int64_t sample);

// The recipe section `train:`; names and defaults are verl's where it has them.

void register_train_section();  // of the recipe's schema; once

struct TrainRecipe {
  TrainSpec spec;
  int64_t validation_problems = 0, validation_draws = 1;
  bool save_model = false;
};
TrainRecipe read_train(const Node& train, uint64_t seed);  // validated

// A task's problems as tokens: what the trainer learns from.

// Problems and tokenizer must outlive the result.
TrainData make_train_data(const std::vector<task::Problem>& problems, const model::Tokenizer& tokenizer,
                          const model::CausalLm& model, task::Scoring scoring);

}  // namespace faultline::train
