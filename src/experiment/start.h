// The supervised steps that all arms of a seed share: trained once, by whichever process needs them first, kept in the
// experiment's folder, read by the others. On another GPU or beside other work the same steps may end with other bits;
// arms that are compared must not.
#pragma once

#include <optional>
#include <string>

#include "lab/training_run.h"

namespace faultline::experiment {

// starts/HASH of the folder, made if it is missing; waits for a process that is making it. Nothing where the recipe has
// no supervised steps before its GRPO. The model comes with the experiment's weights, which their fingerprint proves,
// and never with what a trial before left: seeds must not depend on each other. It may leave changed.
std::optional<std::filesystem::path> shared_start(lab::LoadedModel& loaded, const std::string& weights,
                                                  const Node& recipe, const std::filesystem::path& folder);

// Equal where the supervised steps are: an arm that changes anything they depend on has a start of its own. Nothing
// where the recipe has none. An experiment has one dtype and one model, so neither is in it.
std::optional<std::string> start_identity(const Node& recipe);

// Puts the weights of a start into the model.
void load_start(lab::LoadedModel& loaded, const Node& recipe, const std::filesystem::path& start);

void remove_starts(const std::filesystem::path& folder);  // when no trial needs them any more

}  // namespace faultline::experiment
