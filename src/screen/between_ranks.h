// Known bytes between the ranks of a job of torchrun or srun while this rank's device is under load: `faultline race`
// (all-gather, reduce-scatter and all-reduce, without compute of its own) as a process beside the screen. Wrong bytes
// are laid on a rank by the race, which rank 0 is told; the others know that something was wrong.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "base/json.h"
#include "cluster/membership.h"

namespace faultline::screen {

class BetweenRanks {
 public:
  // device: "cpu" or "cuda:N". seconds: of load; the number of iterations follows from it, alike on all ranks.
  BetweenRanks(std::filesystem::path program, std::string device, double seconds, uint64_t seed);
  ~BetweenRanks();
  BetweenRanks(const BetweenRanks&) = delete;
  BetweenRanks& operator=(const BetweenRanks&) = delete;

  void start();                                     // once the load begins
  Json finish();                                    // waits for it: "between_ranks" of the record
  static std::optional<cluster::Membership> job();  // of more than one rank

 private:
  std::filesystem::path program_;
  std::string device_;
  double seconds_;
  uint64_t seed_;
  std::thread running_;
  Json result_;
};

// What it means for the record that holds it: judged again.
void add_between_ranks(Json& record, const Json& result);

}  // namespace faultline::screen
