// The recipe section `train:`; names and defaults are verl's where it has them.
#pragma once

#include "base/config.h"
#include "train/trainer.h"

namespace faultline {

void register_train_section();  // of the recipe's schema; once

struct TrainRecipe {
  TrainSpec spec;
  int64_t validation_problems = 0, validation_draws = 1;
  bool save_model = false;
};
TrainRecipe read_train(const Node& train, uint64_t seed);  // validated

}  // namespace faultline
