// Arms are compared seed by seed, and a pair speaks of the arms only where both began with the same weights. A folder
// trains the supervised steps of a seed once (start.h); two folders, two machines or the workers of a cluster train
// them once each, and other hardware ends with other last bits. So every trial names the weights it began with, and
// trials of the same supervised steps that name different ones are not put into one store.
#pragma once

#include <map>
#include <string>

#include "base/config/config.h"
#include "experiment/experiment.h"
#include "record/campaign_store.h"

namespace faultline::experiment {

class SameStart {
 public:
  // Notes what a trial of this recipe began with. A sentence where that is not what the others of the same supervised
  // steps began with; else "".
  [[nodiscard]] std::string note(const record::TrialKey& key, const Node& recipe, const std::string& weights);
  // As its record says. A trial without a result may have ended before it began; one with a result must say.
  [[nodiscard]] std::string note(const record::Trial& trial, const Node& recipe);

 private:
  struct Begun {
    record::TrialKey key;
    std::string weights;
  };
  std::map<std::string, Begun> first_;  // by the identity of the supervised steps
};

// Arms are compared seed by seed, and a difference speaks of what an arm changes only where both were judged by the
// same rules and began alike: one model, one task, the same validation problems and draws, the same supervised steps,
// and the experiment's own seeds.

// UsageError that names the arm and what it has of its own. The arms are compared with the control, without one with
// the first.
void check_arms_are_judged_alike(const Node& recipe, const ExperimentSpec& spec);

}  // namespace faultline::experiment
