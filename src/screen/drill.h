// The screen's proof: faults of many kinds planted in it from three sides, each of which must be found at its rate and
// where it is, and healthy screens, which must accuse nobody. The sides: our taps under the operators that the screen
// calls; another thread that flips or holds bits of memory under test and of operands; and a copy operator that loses a
// piece or flips a bit. What was planted is known from the other side alone: the taps' ledger, the thread's own notes,
// the copies that were spoilt. A screen of the drill has a budget of launches, of which a fault with its rate is missed
// once in a million; so neither the machine's load nor its speed decides.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "screen/check.h"

namespace faultline::screen {

struct DrillOptions {
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  int64_t trials = 60;        // planted faults
  int64_t healthy = 20;       // screens without one, each with inputs of its own
  bool large = false;         // the shapes of a GPU's screen; else those of one core
  double most_seconds = 1e9;  // no further trial and no further healthy screen begins after so long, each
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct DrillRow {
  std::string source;  // tap, thread, copy
  std::string what;
  int64_t planted = 0, found = 0, placed = 0;
  int64_t rated = 0, rate_right = 0;  // of those whose rate can be known
};

struct DrillResult {
  std::vector<DrillRow> rows;
  std::vector<std::string> misses, not_planted;
  int64_t planted_launches = 0;  // judged in all screens with a fault
  int64_t healthy = 0, accused = 0, healthy_launches = 0;
  double seconds = 0, healthy_seconds = 0;

  int64_t sum(int64_t DrillRow::* member) const;
  bool passed() const;  // 99 % found, placed and at their rate; nobody accused
};

DrillResult drill(const DrillOptions& options);
Json to_json(const DrillResult& result);

// What was planted in one screen and what the screen made of it.
struct Trial {
  bool found = false, placed = false;
  std::optional<bool> rate;  // right; nothing: not to be known
  std::string note;
};

// The wrong share of `tested` is one that a true rate gives, but for once in ten thousand.
bool agrees(double rate, int64_t wrong, int64_t tested);

// Launches after which a fault of this rate has been met, but for once in a million.
int64_t launches_for(double rate);

}  // namespace faultline::screen
