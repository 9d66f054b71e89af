// Two records of the same question, compared value by value. Bit-equal unless a tolerance is given; then numbers may
// differ by that share of the larger one, and everything else must still be equal. What differs is named by its path
// (keys and indices after slashes), with both values.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"

namespace faultline::record {

struct ComparisonOptions {
  double tolerance = 0;                // relative, of numbers
  std::set<std::string> ignored = {};  // keys of objects at any depth: times, paths
};

struct ValueDifference {
  std::string path;
  std::string was, is;  // as text, shortened
};

constexpr std::size_t kMostDifferences = 50;  // kept; all are counted

struct RecordComparison {
  uint64_t values = 0;  // compared
  uint64_t different = 0;
  uint64_t within = 0;  // numbers that differ by no more than the tolerance
  double largest = 0;   // relative difference of two numbers
  std::vector<ValueDifference> differences;

  bool equal() const { return different == 0; }
};

// Adds what it finds; `name` opens the paths.
void compare(const std::string& name, const Json& was, const Json& is, const ComparisonOptions& options,
             RecordComparison& result);

}  // namespace faultline::record
