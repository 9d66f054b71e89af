// Trials of a triage as tasks of a Ray cluster (cluster/ray_cluster.h).
#pragma once

#include <memory>

#include "cluster/ray_cluster.h"
#include "triage/trial.h"

namespace faultline::triage {

// The cluster must outlive the executor.
std::unique_ptr<Executor> ray_executor(RayCluster& cluster);

}  // namespace faultline::triage
