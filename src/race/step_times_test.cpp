#include "race/step_times.h"

#include <gtest/gtest.h>

namespace faultline::race {
namespace step_times_test {

StepTimes of_steps(size_t count) {
  StepTimes times;
  for (size_t i = 0; i < count; ++i) times.add(static_cast<double>(i));
  return times;
}

TEST(StepTimes, KeepAllOfAShortRun) {
  const StepTimes times = of_steps(4);
  EXPECT_EQ(times.sample(), (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(times.summary(), (Json{{"count", 4}, {"median", 2.0}, {"mean", 1.5}, {"min", 0.0}, {"max", 3.0}}));
  EXPECT_EQ(StepTimes().summary(), nullptr);
}

TEST(StepTimes, OfALongRunTakeNoMoreMemoryAndAreSpreadEvenly) {
  for (const size_t count : {StepTimes::kMaxSample, StepTimes::kMaxSample + 1, 5 * StepTimes::kMaxSample + 3}) {
    const StepTimes times = of_steps(count);
    EXPECT_LE(times.sample().size(), StepTimes::kMaxSample);
    for (size_t i = 0; i < times.sample().size(); ++i)
      ASSERT_EQ(times.sample()[i], static_cast<double>(i * times.stride())) << count;
    EXPECT_GT(times.sample().back() + static_cast<double>(times.stride()), static_cast<double>(count - 1));
    const Json summary = times.summary();
    EXPECT_EQ(summary.at("count"), count);
    EXPECT_EQ(summary.at("max"), static_cast<double>(count - 1));
    EXPECT_DOUBLE_EQ(summary.at("mean"), static_cast<double>(count - 1) / 2);
    EXPECT_EQ(StepTimes::from_json(times.to_json()).to_json(), times.to_json());
  }
}

TEST(StepTimes, CanBeThinnedToThoseOfAnother) {
  const StepTimes longer = of_steps(StepTimes::kMaxSample + 1), shorter = of_steps(StepTimes::kMaxSample);
  const std::vector<double> thinned = shorter.sample_at(longer.stride());
  for (size_t i = 0; i < thinned.size(); ++i) ASSERT_EQ(thinned[i], longer.sample()[i]);
}

TEST(StepTimes, ThatContradictEachOtherAreRefused) {
  Json json = of_steps(3).to_json();
  json["count"] = 9;
  EXPECT_THROW(StepTimes::from_json(json), std::runtime_error);
}

}  // namespace step_times_test
}  // namespace faultline::race
