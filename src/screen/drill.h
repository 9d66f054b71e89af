// The screen's proof: faults of many kinds planted in it from three sides, each of which must be found where it is, and
// healthy screens, which must accuse nobody. The sides: our taps under the operators that the screen calls; another
// thread that flips bits in memory under test and in operands; and one that flips a bit of a buffer between two copies.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "screen/check.h"

namespace faultline::screen {

struct DrillOptions {
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  int64_t trials = 60;    // planted faults
  int64_t healthy = 20;   // screens without one, each with inputs of its own
  double seconds = 0.25;  // of one screen
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct DrillRow {
  std::string source;  // tap, thread
  std::string what;
  int64_t planted = 0, found = 0, placed = 0;
};

struct DrillResult {
  std::vector<DrillRow> rows;
  std::vector<std::string> misses;
  int64_t healthy = 0, accused = 0, healthy_launches = 0;
  // Of faults that act in a share of the calls: how many of these, and of the launches, were wrong.
  int64_t rate_calls = 0, rate_acted = 0, rate_launches = 0, rate_wrong = 0;
  double seconds = 0;

  int64_t planted() const;
  int64_t found() const;
  int64_t placed() const;
  bool passed() const;  // 99 % found and placed, nobody accused
};

DrillResult drill(const DrillOptions& options);
Json to_json(const DrillResult& result);

}  // namespace faultline::screen
