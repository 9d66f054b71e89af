// Trials of an experiment as tasks of a Ray cluster: each is this program, told one arm and one seed and to work in the
// folder that travels with it. What comes back, the store and the trial's run directory, is merged as another machine's
// folder would be (Experiment::merge), which compares recipe, weights, every trial's fingerprint and what the arms of a
// seed began with.
#pragma once

#include <functional>

#include "cluster/ray_cluster.h"
#include "experiment/campaign.h"

namespace faultline::cli {

struct RayExperiment {
  std::filesystem::path folder;          // of the tasks, for as long as the cluster: its answers are written there
  std::vector<std::string> arguments;    // `run RECIPE …`, without arm, seed and folders
  CampaignPart part;                     // its time limit: no task begins later
  std::function<void(int64_t)> on_done;  // told how many trials came back
};
void run_on_ray(Experiment& experiment, RayCluster& cluster, const RayExperiment& options);

// In a task, after its trial: a name for the run directory that can be asked for without knowing when the run began.
void offer_run(const std::filesystem::path& folder);

}  // namespace faultline::cli
