#include "race/step_times.h"

#include <algorithm>
#include <stdexcept>

namespace faultline::race {

void StepTimes::add(double seconds) {
  min_ = empty() ? seconds : std::min(min_, seconds);
  max_ = empty() ? seconds : std::max(max_, seconds);
  sum_ += seconds;
  if (count_++ % stride_ != 0) return;
  if (sample_.size() == kMaxSample) {
    sample_ = sample_at(2 * stride_);
    stride_ *= 2;  // and this step is one of them: the sample's size is even
  }
  sample_.push_back(seconds);
}

std::vector<double> StepTimes::sample_at(size_t stride) const {
  std::vector<double> times;
  for (size_t i = 0; i < sample_.size(); i += stride / stride_) times.push_back(sample_[i]);
  return times;
}

Json StepTimes::summary() const {
  if (empty()) return nullptr;
  std::vector<double> sorted = sample_;
  std::sort(sorted.begin(), sorted.end());
  return {{"count", count_},
          {"median", sorted[sorted.size() / 2]},
          {"mean", sum_ / static_cast<double>(count_)},
          {"min", min_},
          {"max", max_}};
}

Json StepTimes::to_json() const {
  return {{"count", count_}, {"stride", stride_}, {"sum", sum_}, {"min", min_}, {"max", max_}, {"sample", sample_}};
}

StepTimes StepTimes::from_json(const Json& json) {
  StepTimes times;
  times.count_ = json.at("count"), times.stride_ = json.at("stride");
  times.sum_ = json.at("sum"), times.min_ = json.at("min"), times.max_ = json.at("max");
  times.sample_ = json.at("sample").get<std::vector<double>>();
  const size_t wanted = times.stride_ == 0 ? 0 : (times.count_ + times.stride_ - 1) / times.stride_;
  if (times.stride_ == 0 || times.sample_.size() != wanted)
    throw std::runtime_error("times that contradict each other");
  return times;
}

}  // namespace faultline::race
