// Fisher and McNemar against exact fractions (scipy and statsmodels agree), Holm against statsmodels, and
// Kolmogorov-Smirnov against scipy's exact methods (where scipy's kstwo switches to an approximation good to 1e-8, its
// own exact Durbin-Marsaglia-Tsang-Wang routine).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/stats/stats.h"
#include "base/text.h"

namespace faultline {
namespace stats_counts_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void expect_close(double value, double golden, const std::string& label, double relative = 1e-9) {
  EXPECT_LE(std::abs(value - golden), relative * std::abs(golden)) << label << ": " << value << " for " << golden;
}

double clamp_to_unit(double x) { return std::clamp(x, 0.0, 1.0); }  // the uniform distribution's cdf

struct FisherCase {
  int64_t a_yes, a_no, b_yes, b_no;
  double two_sided, greater, less;
};
const FisherCase kFisher[] = {
    {0, 1, 0, 1, 1.0, 1.0, 1.0},
    {1, 0, 0, 1, 1.0, 0.5, 1.0},
    {3, 1, 1, 3, 0.4857142857142857, 0.24285714285714285, 0.9857142857142858},
    {0, 10, 0, 10, 1.0, 1.0, 1.0},
    {10, 0, 0, 10, 1.082508822446903e-05, 5.412544112234515e-06, 1.0},
    {8, 2, 1, 5, 0.03496503496503497, 0.024475524475524476, 0.9991258741258742},
    {0, 4, 4, 0, 0.02857142857142857, 1.0, 0.014285714285714285},
    {50, 50, 30, 70, 0.005937341166015534, 0.002968670583007767, 0.9988303054752571},
    {0, 1000, 10, 990, 0.001909465165341615, 1.0, 0.0009547325826708075},
    {923, 396, 980, 339, 0.014985049934798274, 0.9941271152642898, 0.007492524967399137},
    {1024, 1024, 1000, 1048, 0.47226892793163944, 0.23613446396581972, 0.7826862078819157},
    {600, 400, 300, 700, 8.190094293609226e-42, 4.095047146804613e-42, 1.0},
    {1, 9, 11, 3, 0.0027594561852200836, 0.9999663480953022, 0.0013797280926100418},
};

TEST(Fisher, EqualsExactFractions) {
  for (const auto& test : kFisher) {
    const CountTable table = {test.a_yes, test.a_no, test.b_yes, test.b_no};
    const std::string label = std::to_string(test.a_yes) + " " + std::to_string(test.b_yes);
    expect_close(fisher_exact_test(table), test.two_sided, label);
    expect_close(fisher_exact_test(table, Tail::kGreater), test.greater, label);
    expect_close(fisher_exact_test(table, Tail::kLess), test.less, label);
  }
}

TEST(Fisher, RefusesNegativeCountsAndEmptyGroups) {
  EXPECT_THROW(fisher_exact_test({-1, 2, 3, 4}), UsageError);
  EXPECT_THROW(fisher_exact_test({0, 0, 3, 4}), UsageError);
  EXPECT_THROW(fisher_exact_test({3, 4, 0, 0}), UsageError);
}

struct McNemarCase {
  int64_t only_first, only_second;
  double two_sided, greater, less;
};
const McNemarCase kMcNemar[] = {
    {0, 0, 1.0, 1.0, 1.0},
    {1, 0, 1.0, 0.5, 1.0},
    {0, 5, 0.0625, 1.0, 0.03125},
    {5, 5, 1.0, 0.623046875, 0.623046875},
    {10, 2, 0.03857421875, 0.019287109375, 0.996826171875},
    {3, 17, 0.0025768280029296875, 0.9997987747192383, 0.0012884140014648438},
    {40, 60, 0.05688793364098079, 0.9823998998911476, 0.028443966820490395},
    {200, 100, 8.014875216538918e-09, 4.007437608269459e-09, 0.999999998033887},
    {0, 60, 1.734723475976807e-18, 1.0, 8.673617379884035e-19},
    {0, 1000, 1.8665272370064378e-301, 1.0, 9.332636185032189e-302},
    {499, 501, 0.9747749818216392, 0.5377871779298599, 0.4873874909108196},
};

TEST(McNemar, EqualsExactFractions) {
  for (const auto& test : kMcNemar) {
    const std::string label = std::to_string(test.only_first) + " " + std::to_string(test.only_second);
    expect_close(mcnemar_exact_test(test.only_first, test.only_second), test.two_sided, label);
    expect_close(mcnemar_exact_test(test.only_first, test.only_second, Tail::kGreater), test.greater, label);
    expect_close(mcnemar_exact_test(test.only_first, test.only_second, Tail::kLess), test.less, label);
  }
  EXPECT_THROW(mcnemar_exact_test(-1, 2), UsageError);
}

struct HolmCase {
  std::vector<double> p_values, adjusted;
};
const HolmCase kHolm[] = {
    {{0.01}, {0.01}},
    {{0.01, 0.04, 0.03}, {0.03, 0.06, 0.06}},
    {{0.5, 0.6, 0.7}, {1.0, 1.0, 1.0}},
    {{0.001, 0.001, 0.2, 0.04, 0.03}, {0.005, 0.005, 0.2, 0.09, 0.09}},
    {{1, 0, 0.5}, {1.0, 0.0, 1.0}},
    {{0.02, 0.02, 0.02}, {0.06, 0.06, 0.06}},
    {{1e-12, 0.049, 0.2}, {3e-12, 0.098, 0.2}},
};

TEST(Holm, EqualsStatsmodelsInTheOrderGiven) {
  for (const auto& test : kHolm) {
    const std::vector<double> adjusted = holm_adjust(test.p_values);
    ASSERT_EQ(adjusted.size(), test.adjusted.size());
    for (size_t i = 0; i < adjusted.size(); ++i) expect_close(adjusted[i], test.adjusted[i], std::to_string(i), 1e-14);
  }
  EXPECT_TRUE(holm_adjust({}).empty());
  EXPECT_THROW(holm_adjust(std::vector<double>{0.5, 1.5}), UsageError);
  EXPECT_THROW(holm_adjust(std::vector<double>{kNan}), UsageError);
}

struct KsOneCase {  // (i + 0.5) / n + shift, cut at 1, against the uniform distribution
  int64_t count;
  double shift, statistic, p_value;
};
const KsOneCase kKsOne[] = {
    {1, 0.0, 0.5, 1.0},
    {1, 0.4, 0.9, 0.19999999999999996},
    {2, 0.1, 0.35, 0.92},
    {5, 0.05, 0.15000000000000002, 0.9988},
    {5, 0.3, 0.4, 0.3087999999999995},
    {10, 0.2, 0.2500000000000001, 0.4841115324999995},
    {50, 0.1, 0.11000000000000004, 0.5439007965907299},
    {50, 0.2, 0.21000000000000008, 0.020596236050697714},
    {100, 0.08, 0.08500000000000002, 0.4410737228347541},
    {100, 0.19, 0.19500000000000006, 0.00083207306194379},
    {100, 0.3, 0.30500000000000005, 9.402614888047074e-09},
    {500, 0.03, 0.031000000000000028, 0.71045446063497808},
    {500, 0.1, 0.10100000000000003, 6.813091000736703e-05},
    {1000, 0.055, 0.055500000000000105, 0.0040573015303964474},
    {1000, 0.0645, 0.06500000000000006, 0.0004071582324011759},
    {1999, 0.02, 0.02025012506253132, 0.38029626306700642},
    {1999, 0.2, 0.20025012506253137, 9.77104471024818e-71},
    {5000, 0.1, 0.10010000000000008, 4.572281295735121e-44},
};

TEST(KsOneSample, EqualsScipysExactMethod) {
  for (const auto& test : kKsOne) {
    std::vector<double> values;
    for (int64_t i = 0; i < test.count; ++i) {
      values.push_back(std::min(1.0, (static_cast<double>(i) + 0.5) / static_cast<double>(test.count) + test.shift));
    }
    const KsResult result = ks_test(values, clamp_to_unit);
    const std::string label = "n = " + std::to_string(test.count) + " shift " + std::to_string(test.shift);
    expect_close(result.statistic, test.statistic, label);
    expect_close(result.p_value, test.p_value, label);
    EXPECT_TRUE(result.exact) << label;
  }
}

TEST(KsOneSample, IsAsymptoticForLargeSamplesAndClose) {
  // The exact p of the same statistic at n = 2000 bounds the error of the formula used above it.
  std::vector<double> values;
  for (int i = 0; i < 2001; ++i) values.push_back(clamp_to_unit((i + 0.5) / 2001 + 0.025));
  const KsResult large = ks_test(values, clamp_to_unit);
  values.pop_back();
  for (int i = 0; i < 2000; ++i) values[static_cast<size_t>(i)] = clamp_to_unit((i + 0.5) / 2000 + 0.025);
  const KsResult small = ks_test(values, clamp_to_unit);
  EXPECT_FALSE(large.exact);
  EXPECT_TRUE(small.exact);
  EXPECT_NEAR(large.p_value, small.p_value, 0.002 * small.p_value);
}

TEST(KsOneSample, AcceptsRandomNumbersAndFindsAShift) {
  std::vector<double> uniform, shifted;
  for (uint64_t i = 0; i < 1000; ++i) uniform.push_back(static_cast<double>(mix64(5, i) >> 11) * 0x1p-53);
  for (const double value : uniform) shifted.push_back(std::min(1.0, value + 0.1));
  EXPECT_GT(ks_test(uniform, clamp_to_unit).p_value, 0.01);
  EXPECT_LT(ks_test(shifted, clamp_to_unit).p_value, 1e-6);
}

struct KsTwoCase {
  std::vector<double> a, b;
  double statistic, p_value;
};
const KsTwoCase kKsTwo[] = {
    {{1}, {2}, 1.0, 1.0},
    {{1, 2, 3}, {4, 5, 6}, 1.0, 0.09999999999999999},
    {{1, 2, 3, 4}, {2.5, 3.5}, 0.5, 0.9333333333333332},
    {{0.1, 0.4, 0.7}, {0.2, 0.5, 0.8, 0.9, 0.3}, 0.4, 0.8571428571428572},
    {{1, 1, 2, 2}, {2, 3, 3}, 0.6666666666666666, 0.39999999999999997},
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19},
     {5.5,  6.5,  7.5,  8.5,  9.5,  10.5, 11.5, 12.5, 13.5, 14.5, 15.5, 16.5, 17.5,
      18.5, 19.5, 20.5, 21.5, 22.5, 23.5, 24.5, 25.5, 26.5, 27.5, 28.5, 29.5},
     0.44,
     0.01901592768895381},
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29},
     {100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114,
      115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129},
     1.0,
     1.6911233892144742e-17},
    {{1.0, 2.0}, {1.0, 2.0}, 0.0, 1.0},
};

TEST(KsTwoSample, EqualsScipysExactMethod) {
  for (const auto& test : kKsTwo) {
    const KsResult result = ks_test(test.a, test.b);
    const std::string label = std::to_string(test.a.size()) + " against " + std::to_string(test.b.size());
    expect_close(result.statistic, test.statistic, label);
    expect_close(result.p_value, test.p_value, label);
    EXPECT_TRUE(result.exact);
  }
}

TEST(KsTwoSample, IsAsymptoticBeyondTheLattice) {
  std::vector<double> a(4000), b(4000);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i), b[i] = static_cast<double>(i) + 120.5;
  const KsResult result = ks_test(a, b);
  EXPECT_FALSE(result.exact);
  EXPECT_NEAR(result.statistic, 121.0 / 4000, 1e-12);
  EXPECT_NEAR(result.p_value, 0.05145128476340595, 1e-9);
}

TEST(Ks, RefusesEmptyOrBrokenSamples) {
  const std::vector<double> none, one = {0.5}, broken = {0.5, kNan};
  EXPECT_THROW(ks_test(none, clamp_to_unit), UsageError);
  EXPECT_THROW(ks_test(broken, clamp_to_unit), UsageError);
  EXPECT_THROW(ks_test(one, [](double) { return 1.5; }), UsageError);
  EXPECT_THROW(ks_test(one, none), UsageError);
  EXPECT_THROW(ks_test(broken, one), UsageError);
}

}  // namespace stats_counts_test
}  // namespace faultline
