// --executor: where trials run, of triages, campaigns and experiments alike; and the cluster that it means.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cluster/ray_cluster.h"

namespace faultline::cli {

void add_executor_option(CLI::App& command, std::string& executor, const char* group);
bool wants_ray(const std::string& executor);  // UsageError unless local or ray
void refuse_gpus_on_ray(const std::string& device);

// The cluster of RAY_ADDRESS, reached through the Python of FAULTLINE_PYTHON (python3).
std::unique_ptr<RayCluster> open_ray(const std::atomic<bool>* interrupted = nullptr);
std::filesystem::path own_program();
std::string lost_sentence(const RayCluster& cluster);

}  // namespace faultline::cli
