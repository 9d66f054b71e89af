// A task's problems as tokens: what the trainer learns from.
#pragma once

#include "model/tokenizer.h"
#include "task/task.h"
#include "train/trainer.h"

namespace faultline {

// Problems and tokenizer must outlive the result.
TrainData make_train_data(const std::vector<Problem>& problems, const Tokenizer& tokenizer, const CausalLm& model,
                          Scoring scoring);

}  // namespace faultline
