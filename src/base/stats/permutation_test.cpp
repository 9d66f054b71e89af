// Permutation tests against enumeration in exact rational arithmetic (Python fractions; scipy.stats.permutation_test
// agrees), ties and zeros included, and the sampled forms against the exact ones.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/stats/stats.h"
#include "base/text.h"

namespace faultline {
namespace stats_permutation_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct SignFlipCase {
  std::vector<double> differences;
  double two_sided, greater, less;
};
const SignFlipCase kSignFlip[] = {
    {{1.0}, 1.0, 0.5, 1.0},
    {{1, -2}, 1.0, 0.75, 0.5},
    {{1, 2, 3, 4, 5}, 0.0625, 0.03125, 1.0},
    {{0.1, 0.2, -0.3, 0.4, 0.5, 0.6}, 0.15625, 0.078125, 0.953125},
    {{0, 0, 1, 2}, 0.5, 0.25, 1.0},
    {{0, 0, 0}, 1.0, 1.0, 1.0},
    {{-1.5, -2.5, -0.25, -3}, 0.125, 1.0, 0.0625},
    {{1.9, -0.3, 2.4, 0.8, 3.1, -1.2, 0.7, 2.2}, 0.0703125, 0.03515625, 0.97265625},
    {{0.3, -0.1, 0.2, 0.1, -0.2, 0.4, 0.1, 0.3, -0.1, 0.2}, 0.123046875, 0.0615234375, 0.96875},
};

TEST(SignFlip, EqualsExactEnumeration) {
  for (const auto& test : kSignFlip) {
    const std::string label = "n = " + std::to_string(test.differences.size());
    EXPECT_DOUBLE_EQ(sign_flip_test(test.differences).p_value, test.two_sided) << label;
    EXPECT_DOUBLE_EQ(sign_flip_test(test.differences, Tail::kGreater).p_value, test.greater) << label;
    EXPECT_DOUBLE_EQ(sign_flip_test(test.differences, Tail::kLess).p_value, test.less) << label;
    EXPECT_TRUE(sign_flip_test(test.differences).exact);
  }
}

TEST(SignFlip, CountsTiesThatRoundingWouldSplit) {
  // 0.1 + 0.2 is not 0.3 in binary: flipping all three signs of {0.1, 0.2, -0.3} ties with the observed zero.
  EXPECT_EQ(sign_flip_test(std::vector<double>{0.1, 0.2, -0.3}).p_value, 1.0);
  EXPECT_EQ(sign_flip_test(std::vector<double>{0.1, 0.2, 0.3, 0.6}, Tail::kGreater).p_value, 0.0625);
  EXPECT_EQ(sign_flip_test(std::vector<double>{0.1, 0.2, 0.3, -0.6}, Tail::kGreater).p_value, 9.0 / 16);
}

TEST(SignFlip, IsExactForFortyPairs) {
  const PermutationResult all = sign_flip_test(std::vector<double>(40, 1.0));
  EXPECT_TRUE(all.exact);
  EXPECT_EQ(all.p_value, std::ldexp(1.0, -39));
  EXPECT_EQ(all.arrangements, std::ldexp(1.0, 40));
  std::vector<double> one_against(40, 1.0);
  one_against[7] = -1;
  EXPECT_EQ(sign_flip_test(one_against).p_value, 2 * 41 * std::ldexp(1.0, -40));
}

TEST(SignFlip, SamplesMorePairsAndSaysSo) {
  std::vector<double> differences;
  for (uint64_t i = 0; i < 60; ++i) differences.push_back(static_cast<double>(mix64(9, i) >> 40) * 0x1p-24 - 0.42);
  const PermutationResult sampled = sign_flip_test(differences, Tail::kTwoSided, {.samples = 20'000, .seed = 1});
  EXPECT_FALSE(sampled.exact);
  EXPECT_EQ(sampled.arrangements, 20'000);
  // Against the normal approximation of the same null distribution, which is good to 0.01 at n = 60.
  double sum = 0, squares = 0;
  for (const double value : differences) sum += value, squares += value * value;
  EXPECT_NEAR(sampled.p_value, std::erfc(std::abs(sum) / std::sqrt(2 * squares)), 0.02);
  EXPECT_EQ(sampled.p_value, sign_flip_test(differences, Tail::kTwoSided, {.samples = 20'000, .seed = 1}).p_value);
  EXPECT_NE(sampled.p_value, sign_flip_test(differences, Tail::kTwoSided, {.samples = 20'000, .seed = 2}).p_value);
}

TEST(SignFlip, NeverReportsZeroFromSampling) {
  const auto result = sign_flip_test(std::vector<double>(100, 1.0), Tail::kTwoSided, {.samples = 999, .seed = 0});
  EXPECT_DOUBLE_EQ(result.p_value, 0.001);
}

TEST(SignFlip, RejectsATrueNullAsOftenAsAlpha) {
  int rejected = 0;
  constexpr int kTrials = 2000;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    std::vector<double> differences;
    for (uint64_t i = 0; i < 12; ++i) differences.push_back(static_cast<double>(mix64(trial, i) >> 11) * 0x1p-53 - 0.5);
    rejected += sign_flip_test(differences).p_value <= 0.05;
  }
  EXPECT_NEAR(rejected, 0.05 * kTrials, 50);  // SD 9.7
}

struct TwoSampleCase {
  std::vector<double> a, b;
  double two_sided, greater, less;
};
const TwoSampleCase kTwoSample[] = {
    {{1}, {2}, 1.0, 1.0, 0.5},
    {{1, 2}, {3}, 0.6666666666666666, 1.0, 0.3333333333333333},
    {{1, 2, 3}, {4, 5, 6}, 0.1, 1.0, 0.05},
    {{5, 5, 5}, {5, 5}, 1.0, 1.0, 1.0},
    {{0.61, 0.62, 0.59, 0.64},
     {0.58, 0.57, 0.6, 0.55, 0.59},
     0.03968253968253968,
     0.023809523809523808,
     0.9920634920634921},
    {{3, 1, 2, 9}, {4, 4, 4}, 1.0, 0.6, 0.45714285714285713},
    {{0.1, 0.2, 0.3, 0.4, 0.5},
     {0.6, 0.2, 0.3, 0.1, 0.8, 0.9, 0.7},
     0.20833333333333334,
     0.9255050505050505,
     0.11363636363636363},
    {{7, 8, 9, 10, 11, 12}, {1, 2}, 0.03571428571428571, 0.03571428571428571, 1.0},
};

TEST(Trend, EqualsExactEnumeration) {
  const std::vector<double> rising = {0.1, 0.2, 0.3, 0.5, 0.8}, mixed = {0.3, 0.1, 0.5, 0.2, 0.8};
  EXPECT_DOUBLE_EQ(trend_p(rising), 2.0 / 120);
  const auto balance = [](const std::vector<double>& values) {
    int sum = 0;
    for (size_t j = 0; j < values.size(); ++j)
      for (size_t i = 0; i < j; ++i) sum += values[j] > values[i] ? 1 : -1;
    return std::abs(sum);
  };
  std::vector<double> order = rising;
  int hits = 0;
  do {
    hits += balance(order) >= balance(mixed);
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_NEAR(trend_p(mixed), hits / 120.0, 1e-15);
  EXPECT_DOUBLE_EQ(trend_p(std::vector<double>{0.4, 0.4, 0.4, 0.4}), 1) << "ties say nothing";
  EXPECT_DOUBLE_EQ(trend_p(std::vector<double>{0.4}), 1);
}

TEST(TwoSamplePermutation, EqualsExactEnumeration) {
  for (const auto& test : kTwoSample) {
    const std::string label = std::to_string(test.a.size()) + " against " + std::to_string(test.b.size());
    EXPECT_DOUBLE_EQ(two_sample_permutation_test(test.a, test.b).p_value, test.two_sided) << label;
    EXPECT_DOUBLE_EQ(two_sample_permutation_test(test.a, test.b, Tail::kGreater).p_value, test.greater) << label;
    EXPECT_DOUBLE_EQ(two_sample_permutation_test(test.a, test.b, Tail::kLess).p_value, test.less) << label;
    EXPECT_DOUBLE_EQ(two_sample_permutation_test(test.b, test.a, Tail::kLess).p_value, test.greater) << label;
  }
}

TEST(TwoSamplePermutation, ReportsTheMeanDifferenceOfAMinusB) {
  EXPECT_DOUBLE_EQ(two_sample_permutation_test(std::vector<double>{5, 6, 7}, std::vector<double>{1}).observed, 5);
  EXPECT_DOUBLE_EQ(two_sample_permutation_test(std::vector<double>{1}, std::vector<double>{5, 6, 7}).observed, -5);
}

TEST(TwoSamplePermutation, SamplesLargeGroupsAndAgreesWithTheExactAnswer) {
  std::vector<double> a, b;  // 12 of 24: 2.7 million splits, still exact; doubled: sampled
  for (uint64_t i = 0; i < 12; ++i) {
    a.push_back(static_cast<double>(mix64(1, i) >> 40) * 0x1p-24 + 0.15);
    b.push_back(static_cast<double>(mix64(2, i) >> 40) * 0x1p-24);
  }
  EXPECT_TRUE(two_sample_permutation_test(a, b).exact);
  EXPECT_EQ(two_sample_permutation_test(a, b).arrangements, 2'704'156);
  std::vector<double> far_a(30, 1.0), far_b(30, 0.0);
  const auto sampled = two_sample_permutation_test(far_a, far_b, Tail::kGreater, {.samples = 999, .seed = 4});
  EXPECT_FALSE(sampled.exact);
  EXPECT_DOUBLE_EQ(sampled.p_value, 0.001);
  far_b = far_a;
  EXPECT_EQ(two_sample_permutation_test(far_a, far_b, Tail::kGreater, {.samples = 999}).p_value, 1.0);
}

TEST(TwoSamplePermutation, SampledPIsThatOfTheNormalApproximation) {
  std::vector<double> a, b, all;
  for (uint64_t i = 0; i < 80; ++i) a.push_back(static_cast<double>(mix64(1, i) >> 40) * 0x1p-24 + 0.08);
  for (uint64_t i = 0; i < 60; ++i) b.push_back(static_cast<double>(mix64(2, i) >> 40) * 0x1p-24);
  all = a;
  all.insert(all.end(), b.begin(), b.end());
  const auto sampled = two_sample_permutation_test(a, b, Tail::kGreater, {.samples = 20'000, .seed = 4});
  const double z = sampled.observed / (sd_of(all) * std::sqrt(1.0 / 80 + 1.0 / 60));
  EXPECT_NEAR(sampled.p_value, 0.5 * std::erfc(z / std::sqrt(2.0)), 0.015);
}

TEST(SmallestSignFlipP, ShowsThatFiveSeedsCannotReachFivePerCent) {  // lesson 57
  EXPECT_EQ(smallest_sign_flip_p(5), 0.0625);
  EXPECT_EQ(smallest_sign_flip_p(5, Tail::kGreater), 0.03125);
  EXPECT_EQ(sign_flip_test(std::vector<double>{1, 2, 3, 4, 5}).p_value, smallest_sign_flip_p(5));
  EXPECT_EQ(smallest_sign_flip_p(1), 1.0);
}

TEST(FewestSignFlipPairs, IsEightForHolmOverFive) {
  EXPECT_EQ(fewest_sign_flip_pairs(0.05), 6);
  EXPECT_EQ(fewest_sign_flip_pairs(0.05, 5), 8);
  EXPECT_EQ(fewest_sign_flip_pairs(0.05, 1, Tail::kLess), 5);
  EXPECT_EQ(fewest_sign_flip_pairs(0.0625), 5);
}

TEST(PermutationTests, RefuseEmptyBrokenOrTooFew) {
  EXPECT_THROW(sign_flip_test({}), UsageError);
  EXPECT_THROW(sign_flip_test(std::vector<double>{1, kNan}), UsageError);
  EXPECT_THROW(sign_flip_test(std::vector<double>{1, 2}, Tail::kLess, {.samples = 5}), UsageError);
  EXPECT_THROW(two_sample_permutation_test({}, std::vector<double>{1}), UsageError);
  EXPECT_THROW(two_sample_permutation_test(std::vector<double>{1}, {}), UsageError);
  EXPECT_THROW(two_sample_permutation_test(std::vector<double>{1}, std::vector<double>{kNan}), UsageError);
  EXPECT_THROW(smallest_sign_flip_p(0), UsageError);
  EXPECT_THROW(fewest_sign_flip_pairs(0), UsageError);
  EXPECT_THROW(fewest_sign_flip_pairs(0.05, 0), UsageError);
}

}  // namespace stats_permutation_test
}  // namespace faultline
