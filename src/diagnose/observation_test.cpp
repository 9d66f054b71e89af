// A relation is judged element by element: to the bit where it has no tolerance, within it where it has one.
#include "diagnose/observation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace faultline::diagnose {
namespace observation_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int64_t violations(const Observation& observation) {
  const std::optional<Judged> judged = judge(observation);
  return judged ? judged->evidence.violations : 0;
}

Observation observed(at::Tensor expected, at::Tensor seen) {
  return {.relation = "test", .operation = "linear", .expected = std::move(expected), .observed = std::move(seen)};
}

TEST(Observation, WithoutToleranceAccusesTheNeighbouringNumber) {
  const at::Tensor expected = at::tensor({1.0, -2.0, 0.0, 3.0}).to(at::kBFloat16).view({2, 2});
  EXPECT_EQ(violations(observed(expected, expected.clone())), 0);
  at::Tensor next = expected.clone();
  next[1][1] = 3.015625;  // one step of bf16 further
  const auto judged = judge(observed(expected, next));
  ASSERT_TRUE(judged);
  EXPECT_EQ(judged->evidence.violations, 1);
  EXPECT_EQ(judged->evidence.elements, 4);
  ASSERT_EQ(judged->evidence.samples.size(), 1u);
  EXPECT_EQ(judged->evidence.samples[0].row, 1);
  EXPECT_EQ(judged->evidence.samples[0].observed, 3.015625);
  EXPECT_TRUE(glance(std::vector{observed(expected, next)})[0].suspect);
}

TEST(Observation, TakesTheTwoZerosForOneAndLeavesAloneWhatCameInBroken) {
  const at::Tensor expected = at::tensor({0.0, kNan}, at::kFloat).view({1, 2});
  EXPECT_EQ(violations(observed(expected, at::tensor({-0.0, kNan}, at::kFloat).view({1, 2}))), 0);
  EXPECT_EQ(violations(observed(expected, at::tensor({kNan, kNan}, at::kFloat).view({1, 2}))), 1);
  EXPECT_EQ(violations(observed(expected, at::tensor({0.0, 1.0}, at::kFloat).view({1, 2}))), 1);
}

TEST(Observation, WithAToleranceAccusesWhatLiesBeyondIt) {
  Observation observation = observed(at::tensor({1.0, 1.0, 1.0}, at::kDouble).view({1, 3}),
                                     at::tensor({1.0, 1.25, 1.5}, at::kFloat).view({1, 3}));
  observation.tolerance = at::full({1, 3}, 0.25, at::kDouble);
  const auto judged = judge(observation);
  ASSERT_TRUE(judged);
  EXPECT_EQ(judged->evidence.violations, 1);
  EXPECT_EQ(judged->evidence.ratio, 2);
}

}  // namespace observation_test
}  // namespace faultline::diagnose
