// What an experiment says: the design that was written down before its trials, and the table that is made of them.
#pragma once

#include "base/json.h"
#include "experiment/experiment.h"

namespace faultline::experiment {

// The number of pairs, the family of contrasts and, from the pilot's trials where there are any, the smallest
// difference that the experiment resolves. Written once: a design that exists is returned as it stands. UsageError
// where the experiment's own trials came first or only a part of a pilot is there, EvidenceError where a pilot's trials
// have no proof or fewer than two pairs.
Json write_design(const ExperimentSpec& spec, const std::filesystem::path& folder);

// Of all finished trials: means with intervals, declared contrasts (paired by seed, exact sign-flip test, t interval,
// Holm over the family), survival, curves, overhead, recovery, and what a reader must know besides (remarks.h).
Json analyse(const ExperimentSpec& spec, const std::filesystem::path& folder);

}  // namespace faultline::experiment
