// The reproducer's proof: faults of every kind in every place, on every rank and layer, each of which must be found and
// attributed to the right cause, rank and layer; and clean iterations, which must be silent. A part of the faults comes
// from outside: another thread writes raw bytes into live buffers at pause points, so that injector and detector have
// nothing in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "race/config.h"

namespace faultline::race {

struct SelftestOptions {
  bool full = false;  // more than 1,000 planted faults and 1,000 clean iterations
  uint64_t seed = 0;
  at::Device device = at::kCPU;
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct SelftestRow {
  std::string source;  // "hook" or "thread"
  std::string setting;
  FaultType kind = FaultType::kBitFlip;
  Place place = Place::kCommOutput;
  int64_t planted = 0, detected = 0, attributed = 0;
};

struct SelftestResult {
  std::vector<SelftestRow> rows;
  std::vector<std::string> misses;  // bounded
  int64_t clean_iterations = 0, clean_alarms = 0, ranks = 0;
  double seconds = 0;

  int64_t planted() const;
  int64_t planted_outside() const;
  bool passed() const;
  std::string sentence() const;
};

SelftestResult selftest(const SelftestOptions& options);
std::vector<std::vector<std::string>> matrix(const SelftestResult& result);  // kind x place -> found / planted
Json to_json(const SelftestResult& result);

}  // namespace faultline::race
