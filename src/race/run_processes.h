// Ranks as processes, over Gloo on a CPU and over NCCL on GPUs: started here (run_processes), or by torchrun, srun or
// our own launcher, each of which calls run_joined with the usual variables RANK, WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT. Every rank publishes where it is; who stops publishing is dead or stopped, who stops moving is stuck,
// and either is named.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "race/run.h"

namespace c10d {
class Store;
}

namespace faultline::race {

struct Membership {
  int rank = 0;
  int ranks = 1;
  int local_ranks = 1;            // that share this machine's cores; unknown: all
  std::optional<int> local_rank;  // among them; also the rank's GPU
  std::string address;
  uint16_t port = 0;
  bool agent_store = false;  // somebody else serves the store: torchrun's agent, or our launcher
  std::string generation;    // of torchrun's restarts

  bool on_loopback() const { return address == "localhost" || address == "::1" || address.starts_with("127."); }
};

// From the environment; nullopt where RANK is not set. UsageError where the variables contradict each other.
std::optional<Membership> membership_from_environment();

// Where the ranks of a job find each other; seconds: how long to wait for them.
c10::intrusive_ptr<c10d::Store> open_store(const Membership& membership, double timeout);

// This process' rank. Leaves its evidence in `folder` where one is given; rank 0 merges what all ranks published.
RunResult run_joined(const Membership& membership, const Node& node, const Config& config, const RunOptions& options,
                     const std::filesystem::path& folder);

void add_rank_file(RunResult& result, const std::filesystem::path& path, int rank);  // what run_joined left there

RunResult run_processes(const Node& node, const Config& config, const RunOptions& options);

void check_transport(const std::string& transport, at::Device device);  // UsageError
// What the command line asked for: joined where the environment says so, else threads, gloo or nccl.
RunResult run(const std::string& transport, const Node& node, const Config& config, const RunOptions& options);

}  // namespace faultline::race
