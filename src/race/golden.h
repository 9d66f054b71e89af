// The golden: digests of the computation, kept from a run that is trusted, so that a machine on which every layer of
// every rank is wrong in the same way is found out (lesson 47). It holds what it depends on, and is refused elsewhere.
#pragma once

#include <filesystem>

#include "base/stats.h"
#include "race/run.h"

namespace faultline::race {

void write_golden(const std::filesystem::path& path, const Node& config, at::Device device, const RunResult& result);
Reference read_golden(const std::filesystem::path& path, const Node& config, at::Device device);

inline constexpr int64_t kOverheadIterations = 8;  // four pairs that differ, two that do not
struct Overhead {
  MeanInterval relative;         // of paired neighbouring iterations: with / without - 1
  MeanInterval drift;            // of iterations without, one with between them: what noise alone gives
  double with = 0, without = 0;  // medians, seconds
};
Overhead digest_overhead(const RunResult& result);  // of a run with alternate_digests

}  // namespace faultline::race
