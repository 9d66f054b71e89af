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

// Set by Ctrl-C and SIGTERM from the first call on: whoever waits for others' work puts away what it has and ends.
const std::atomic<bool>* interruption();

// The cluster of RAY_ADDRESS, reached through the Python of FAULTLINE_PYTHON (python3). An interruption ends every
// waiting for it.
std::unique_ptr<RayCluster> open_ray();
// Of a waiting that ended without a task's answer.
[[noreturn]] void fail_without_answer(const RemoteEnd& end);
std::filesystem::path own_program();
std::string lost_sentence(const RayCluster& cluster);

}  // namespace faultline::cli
