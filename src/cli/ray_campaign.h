// Trials of a diagnosis campaign as tasks of a Ray cluster: a task is the program's own `diagnose --worker` with
// several trials on its input, because loading the model costs about as much as a trial. Results come back as records,
// the store stays with the program that was started.
#pragma once

#include <memory>

#include "cluster/ray_cluster.h"
#include "diagnose/campaign.h"

namespace faultline::cli {

// folder: of the tasks, for as long as the cluster, whose answers are written there. pending: trials that are left,
// which decides how many go into a task.
std::unique_ptr<TrialExecutor> ray_trials(RayCluster& cluster, const std::filesystem::path& folder,
                                          const CampaignMachine& machine, const CampaignSpec& spec, int64_t pending);

}  // namespace faultline::cli
