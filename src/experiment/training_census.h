// What a training step runs, by phase and kind of forward: the rollout's prefill and decoding, the actor's body and
// head with their backward, the reference's, the validation's. Evidence of a faulty training is held against it.
#pragma once

#include "lab/injection.h"
#include "train/trainer.h"

namespace faultline {

// trained: the parameters that require gradients, as they do while a Trainer lives. rows: sequences of a forward.
Censuses take_training_censuses(const CausalLm& model, const std::vector<CausalLm::Parameter>& trained,
                                const StageSpec& stage, int64_t rows);

}  // namespace faultline
