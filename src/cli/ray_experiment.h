// Trials of an experiment as tasks of a Ray cluster: each is this program, told one arm and one seed and to work in the
// folder that travels with it. What comes back is merged as another machine's folder would be (Experiment::merge),
// which compares recipe, weights and every trial's fingerprint.
#pragma once

#include <functional>

#include "cluster/ray_cluster.h"
#include "experiment/campaign.h"

namespace faultline::cli {

struct RayExperiment {
  std::vector<std::string> arguments;    // `run RECIPE …`, without arm, seed and folders
  CampaignPart part;                     // its time limit: no task begins later
  std::function<void(int64_t)> on_done;  // told how many trials came back
};
void run_on_ray(Experiment& experiment, RayCluster& cluster, const RayExperiment& options);

}  // namespace faultline::cli
