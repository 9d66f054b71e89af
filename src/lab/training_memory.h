// What a training will take of memory, before its first step.
#pragma once

#include "lab/training_run.h"

namespace faultline::lab {

struct TrainingMemory {  // bytes
  double weights_and_optimizer = 0, cache = 0, activations = 0, logits = 0;
  double total() const { return weights_and_optimizer + cache + activations + logits; }
};

int64_t parameters_of(const model::ModelConfig& config);
int64_t adapter_elements(const train::LoraSpec& spec, const model::ModelConfig& config);

// tokens: of the longest prompt with its response; head_positions: of logits that stand in memory at a time.
TrainingMemory training_memory(const model::ModelConfig& config, at::ScalarType dtype, const train::TrainSpec& spec,
                               int64_t tokens, int64_t head_positions);

// UsageError where weights, gradients and optimizer alone take more than there is, with what would fit: before weights
// are read.
void refuse_training_that_does_not_fit(const std::string& name, const model::ModelConfig& config, at::ScalarType dtype,
                                       const train::TrainSpec& spec, int64_t available);

}  // namespace faultline::lab
