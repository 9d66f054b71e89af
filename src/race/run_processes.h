// Ranks as processes, over Gloo on a CPU, over NCCL on GPUs, or Python's over a backend of torch.distributed. Started
// here, by this program itself or by a launcher that it runs (run_processes): they meet at a store that this process
// serves, get the request from it and leave their evidence in it. Or by torchrun or srun, with the usual variables
// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (run_joined): then rank 0 merges. Every rank publishes where it is; who
// stops publishing is dead or stopped, who stops moving is stuck, and either is named.
#pragma once

#include <string>

#include "cluster/membership.h"
#include "race/run.h"

namespace c10d {
class Store;
}

namespace faultline::race {

// This process' rank, and on rank 0 the merged result of all.
RunResult run_joined(const cluster::Membership& membership, const Node& node, const Config& config,
                     const RunOptions& options);

// A rank that run_processes has started, on the machine that the launcher calls `host`: what to do, and doing it.
// UsageError: another version of this program has asked, for another number of ranks, or two processes are this rank.
Node launched_request(const cluster::Membership& membership);
RunResult run_launched(const cluster::Membership& membership, const std::string& host, const Node& node,
                       const Config& config, const RunOptions& options);
void refuse_launch(const cluster::Membership& membership, const std::string& host, const std::string& sentence);

RunResult run_processes(const Node& node, const Config& config, const RunOptions& options);

// What a rank has left in the store; false: nothing yet.
bool add_published_evidence(RunResult& result, c10d::Store& store, int rank);

// UsageError where they do not go together.
void check_transport(const std::string& transport, at::Device device, const std::optional<PythonRanks>& python);
// What the command line asked for: joined where the environment says so, else threads, gloo, nccl or torch.
RunResult run(const std::string& transport, const Node& node, const Config& config, const RunOptions& options);

}  // namespace faultline::race
