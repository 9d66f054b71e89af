// Arms are compared seed by seed, and a difference speaks of what an arm changes only where both were judged by the
// same rules and began alike: one model, one task, the same validation problems and draws, the same supervised steps,
// and the experiment's own seeds.
#pragma once

#include "experiment/experiment.h"

namespace faultline {

// UsageError that names the arm and what it has of its own. The arms are compared with the control, without one with
// the first.
void check_arms_are_judged_alike(const Node& recipe, const ExperimentSpec& spec);

}  // namespace faultline
