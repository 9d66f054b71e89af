// How long the steps of a run took, in memory that does not grow with the run: number, sum, least and most are of all
// steps, the sample is of every `stride`-th. A full sample drops every second of its times and the stride doubles, so
// it stays evenly spread over the whole run, and which steps are in it depends on nothing but their numbers.
#pragma once

#include <cstddef>
#include <vector>

#include "base/json.h"

namespace faultline::race {

class StepTimes {
 public:
  static constexpr size_t kMaxSample = 1 << 14;

  void add(double seconds);
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  size_t stride() const { return stride_; }
  const std::vector<double>& sample() const { return sample_; }
  std::vector<double> sample_at(size_t stride) const;  // a multiple of ours, by a power of two

  Json summary() const;  // for people: count, median of the sample, mean, min, max; null where there is none
  Json to_json() const;  // all of it
  static StepTimes from_json(const Json& json);

 private:
  size_t count_ = 0, stride_ = 1;
  double sum_ = 0, min_ = 0, max_ = 0;
  std::vector<double> sample_;
};

}  // namespace faultline::race
