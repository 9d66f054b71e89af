// For tests: a random model of two layers and a task on tokens, both small enough for a step in milliseconds.
#pragma once

#include "train/trainer.h"

namespace faultline::train {

inline model::ModelConfig tiny_config() {
  model::ModelConfig config;
  config.vocabulary = 32, config.hidden = 32, config.layers = 2, config.heads = 4, config.kv_heads = 2;
  config.head_size = 8, config.inner = 48, config.context = 64, config.tied_output = true;
  return config;
}

inline model::CausalLm tiny_model(uint64_t seed = 3, at::ScalarType dtype = at::kFloat) {
  return {tiny_config(), seed, dtype, at::kCPU};
}

// Answer with the prompt's first token, then the end (1). Reward: 1 where the first token is right.
inline TrainData tiny_data() {
  TrainData data;
  for (int64_t i = 0; i < 24; ++i) data.problems.push_back({{2 + i, 30, 31}, {2 + i, 2 + i, 1}});
  data.end_tokens = {1};
  data.reward = [](std::size_t problem, std::span<const int64_t> response) {
    return !response.empty() && response[0] == 2 + static_cast<int64_t>(problem)
               ? 1.0
               : 0.1 * static_cast<double>(response.size() % 3);
  };
  return data;
}

inline StageSpec tiny_sft(int64_t steps) {
  StageSpec stage;
  stage.algorithm = Algorithm::kSft;
  stage.steps = steps, stage.prompts = 6, stage.n = 1, stage.micro_batch = 3;
  stage.optimizer.learning_rate = 3e-3;
  return stage;
}

inline StageSpec tiny_grpo(int64_t steps) {
  StageSpec stage;
  stage.steps = steps, stage.prompts = 4, stage.n = 4, stage.micro_batch = 8, stage.max_new_tokens = 6;
  stage.slots = 16;
  stage.optimizer.learning_rate = 1e-3;
  return stage;
}

inline record::Manifest tiny_manifest() {
  record::Manifest manifest;
  manifest.recipe_name = "tiny";
  manifest.recipe = {{"seed", 7}};
  return manifest;
}

}  // namespace faultline::train
