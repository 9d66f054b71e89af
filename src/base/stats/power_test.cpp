// Power and sample size against statsmodels 0.15 (TTestPower, power_proportions_2indep) and, for the noncentral t,
// numerical integration with 20 digits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/stats/stats.h"

namespace faultline {
namespace stats_power_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Powers of the wrong direction are differences of nearly equal sums: relative for what matters, 1e-13 absolute.
void expect_close(double value, double golden, const std::string& label) {
  EXPECT_LE(std::abs(value - golden), 1e-9 * std::abs(golden) + 1e-13) << label << ": " << value << " for " << golden;
}

struct PairedCase {
  double effect, sd;
  int64_t pairs;
  double alpha, two_sided, greater, less;
};
const PairedCase kPaired[] = {
    {1.9, 2.1, 12, 0.05, 0.8138028129689465, 0.9011812116443837, 2.04588690153827e-06},
    {1.9, 2.1, 5, 0.05, 0.342210696559077, 0.5117993480563863, 0.00033897462138794145},
    {0.5, 1.0, 2, 0.05, 0.061948606687133596, 0.10582289060245466, 0.017743852056274864},
    {0.0, 1.0, 10, 0.05, 0.05000000000000002, 0.04999999999999996, 0.04999999999999996},
    {-1.9, 2.1, 12, 0.05, 0.8138028129689465, 2.04588690153827e-06, 0.9011812116443837},
    {0.2, 1.0, 200, 0.05, 0.8036666605857853, 0.8797900194043382, 4.027444651619397e-06},
    {1.0, 1.0, 12, 0.01, 0.6418778300146499, 0.7588604734074096, 2.6354505703992956e-08},
    {0.05, 1.0, 5000, 0.05, 0.9423591728304449, 0.9706345148839401, 1.1099691601306264e-07},
    {3.0, 1.0, 12, 0.001, 0.9999888185374528, 0.9999988774704086, 1.1786678425813359e-34},
};

TEST(PairedTPower, EqualsGoldenValues) {
  for (const auto& test : kPaired) {
    const std::string label = std::to_string(test.effect) + " n = " + std::to_string(test.pairs);
    const auto power = [&](Tail tail) { return paired_t_power(test.effect, test.sd, test.pairs, test.alpha, tail); };
    expect_close(power(Tail::kTwoSided), test.two_sided, label);
    expect_close(power(Tail::kGreater), test.greater, label);
    expect_close(power(Tail::kLess), test.less, label);
  }
}

struct PairedSizeCase {
  double effect, sd, power, alpha;
  int64_t pairs;
};
const PairedSizeCase kPairedSize[] = {
    {1.9, 2.1, 0.8, 0.05, 12}, {1.0, 1.0, 0.8, 0.05, 10},    {0.2, 1.0, 0.9, 0.05, 265},
    {5.0, 1.0, 0.8, 0.05, 3},  {0.05, 1.0, 0.8, 0.05, 3142}, {0.5, 1.0, 0.95, 0.01, 75},
};

TEST(PairedTRequiredPairs, IsTheSmallestThatSuffices) {
  for (const auto& test : kPairedSize) {
    EXPECT_EQ(paired_t_required_pairs(test.effect, test.sd, test.power, test.alpha), test.pairs) << test.effect;
    EXPECT_EQ(paired_t_required_pairs(-test.effect, test.sd, test.power, test.alpha), test.pairs) << test.effect;
  }
  EXPECT_LE(paired_t_required_pairs(1.9, 2.1, 0.8, 0.05, Tail::kGreater), paired_t_required_pairs(1.9, 2.1));
}

TEST(PairedTDetectableEffect, OfTwelveSeedsIsOnePointNine) {
  const double effect = paired_t_detectable_effect(2.1, 12);
  EXPECT_NEAR(effect, 1.9, 0.05);
  EXPECT_NEAR(paired_t_power(effect, 2.1, 12), 0.8, 1e-9);
  EXPECT_NEAR(paired_t_power(-paired_t_detectable_effect(2.1, 12, 0.9, 0.01, Tail::kLess), 2.1, 12, 0.01, Tail::kLess),
              0.9, 1e-9);
}

struct ProportionCase {
  double first, second;
  int64_t trials;
  double alpha, two_sided, greater, less;
};
const ProportionCase kProportion[] = {
    {0.7, 0.65, 1319, 0.05, 0.7830772202733665, 0.8639379237438258, 5.600476806543344e-06},
    {0.5, 0.5, 100, 0.05, 0.049999999999999954, 0.049999999999999975, 0.049999999999999975},
    {0.01, 0.02, 1000, 0.05, 0.45212497117121425, 0.00024387409200957305, 0.5772652656902564},
    {0.9, 0.5, 20, 0.01, 0.5812083704563467, 0.685192514256056, 7.862895168497192e-09},
    {0.65, 0.7, 1319, 0.05, 0.7830772202733665, 5.600476806543344e-06, 0.8639379237438258},
    {0.7026, 0.7, 1000000, 0.05, 0.9801532305819561, 0.9911548065934966, 7.491583752589506e-09},
    {0.99, 0.01, 1, 0.05, 0.0019593517706910364, 0.0966046284750387, 1.113568025119497e-52},
};

TEST(TwoProportionPower, EqualsGoldenValues) {
  for (const auto& test : kProportion) {
    const std::string label = std::to_string(test.first) + " " + std::to_string(test.second);
    const auto power = [&](Tail tail) {
      return two_proportion_power(test.first, test.second, test.trials, test.alpha, tail);
    };
    expect_close(power(Tail::kTwoSided), test.two_sided, label);
    expect_close(power(Tail::kGreater), test.greater, label);
    expect_close(power(Tail::kLess), test.less, label);
  }
}

struct ProportionSizeCase {
  double first, second, power, alpha;
  int64_t trials;
};
const ProportionSizeCase kProportionSize[] = {
    {0.7, 0.65, 0.8, 0.05, 1377},
    {0.9, 0.5, 0.9, 0.01, 37},
    {0.01, 0.02, 0.8, 0.05, 2319},
    {0.5, 0.51, 0.8, 0.05, 39240},
};

TEST(TwoProportionRequiredTrials, IsTheSmallestThatSuffices) {
  for (const auto& test : kProportionSize) {
    EXPECT_EQ(two_proportion_required_trials(test.first, test.second, test.power, test.alpha), test.trials);
    EXPECT_EQ(two_proportion_required_trials(test.second, test.first, test.power, test.alpha), test.trials);
  }
}

// 9 and 4 right of 12, 7 answers changed: p = 0.13. By the formula 23.96 questions show it.
TEST(McNemarRequiredPairs, IsTheNormalApproximationAndPassesTheExactTest) {
  EXPECT_EQ(mcnemar_required_pairs(6, 1, 12), 24);
  EXPECT_EQ(mcnemar_required_pairs(1, 6, 12), 24);
  EXPECT_LT(mcnemar_exact_test(12, 2), 0.05);
  EXPECT_GT(mcnemar_required_pairs(6, 1, 12, 0.8, 0.05 / 3), 24);
  EXPECT_EQ(mcnemar_required_pairs(5, 0, 5), 6);  // 3.84 by the formula; five changed answers give p = 0.06
  EXPECT_NEAR(static_cast<double>(mcnemar_required_pairs(1, 0, 1000)), 7847, 2);
}

TEST(Power, RefusesQuestionsWithoutAnAnswer) {
  EXPECT_THROW(paired_t_power(kNan, 1, 5), UsageError);
  EXPECT_THROW(paired_t_power(1, 0, 5), UsageError);
  EXPECT_THROW(paired_t_power(1, 1, 1), UsageError);
  EXPECT_THROW(paired_t_power(1, 1, 5, 0), UsageError);
  EXPECT_THROW(paired_t_power(1, 1, 5, 0.7, Tail::kGreater), UsageError);
  EXPECT_THROW(paired_t_required_pairs(0, 1), UsageError);
  EXPECT_THROW(paired_t_required_pairs(-1, 1, 0.8, 0.05, Tail::kGreater), UsageError);
  EXPECT_THROW(paired_t_required_pairs(1, 1, 1.0), UsageError);
  EXPECT_THROW(paired_t_required_pairs(1e-9, 1), UsageError);
  EXPECT_THROW(paired_t_detectable_effect(1, 1), UsageError);
  EXPECT_THROW(two_proportion_power(0, 0.5, 10), UsageError);
  EXPECT_THROW(two_proportion_power(0.5, 0.5, 0), UsageError);
  EXPECT_THROW(two_proportion_required_trials(0.5, 0.5), UsageError);
  EXPECT_THROW(mcnemar_required_pairs(3, 3, 12), UsageError);
  EXPECT_THROW(mcnemar_required_pairs(8, 5, 12), UsageError);
}

}  // namespace stats_power_test
}  // namespace faultline
