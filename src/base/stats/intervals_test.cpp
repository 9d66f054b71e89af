// Intervals against golden values (statsmodels 0.15 / scipy for proportions, scipy for t, scipy's bootstrap with
// 400,000 resamples), and the edges: none, all, one, a million.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/stats/stats.h"
#include "base/text.h"

namespace faultline {
namespace stats_intervals_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void expect_close(double value, double golden, const std::string& label, double relative = 1e-9) {
  EXPECT_LE(std::abs(value - golden), relative * std::abs(golden)) << label << ": " << value << " for " << golden;
}

const std::vector<double> kTreated = {0.606, 0.612, 0.59, 0.633, 0.581, 0.6, 0.615, 0.622, 0.597, 0.608, 0.611, 0.604};
const std::vector<double> kControl = {0.55, 0.581, 0.571, 0.6, 0.58, 0.549, 0.56, 0.602, 0.571, 0.566, 0.57, 0.561};
const std::vector<double> kSkewed = {0.61, 0.42, 0.93, 1.7, 0.25, 0.33, 2.9, 0.51,
                                     0.78, 1.1,  0.66, 4.2, 0.37, 0.95, 0.58};

struct ProportionPoint {
  int64_t successes, trials;
  double confidence, wilson_low, wilson_high, exact_low, exact_high, lower, upper;
};
const ProportionPoint kProportions[] = {
    {0, 1, 0.95, 0.0, 0.7934506856227626, 0.0, 0.975, 0.0, 0.95},
    {1, 1, 0.95, 0.20654931437723745, 1.0, 0.025000000000000022, 1.0, 0.050000000000000044, 1.0},
    {0, 4, 0.95, 0.0, 0.48989083645459724, 0.0, 0.6023646356164746, 0.0, 0.527129195498412},
    {4, 4, 0.95, 0.5101091635454027, 1.0, 0.3976353643835254, 1.0, 0.472870804501588, 1.0},
    {2, 5, 0.9, 0.14270647201921302, 0.7275168281338072, 0.07644039141232886, 0.8107446225622292, 0.11223495854585855,
     0.7533635467115334},
    {0, 100, 0.95, 0.0, 0.03699349820698567, 0.0, 0.03621669264517641, 0.0, 0.029513049607039925},
    {100, 100, 0.99, 0.937779312284177, 1.0, 0.948395970375896, 1.0, 0.954992586021436, 1.0},
    {1, 1000, 0.95, 0.00017654637062607806, 0.005642558597957935, 2.5317487491294065e-05, 0.005558924279826672,
     5.129197890901785e-05, 0.004734993575499777},
    {923, 1319, 0.95, 0.6744855642333557, 0.7238992886800218, 0.6742319812621138, 0.7244196996160631,
     0.6783171802800667, 0.7205662703333806},
    {925, 1319, 0.5, 0.6927204739743745, 0.7097184311688931, 0.692311580957673, 0.7100656726670755, 0.7008589956813208,
     0.7016169541237787},
    {1024, 2048, 0.999, 0.46374019699087166, 0.5362598030091283, 0.46345365583870374, 0.5365463441612963,
     0.46565801132157386, 0.5343419886784262},
    {3, 2048, 0.95, 0.0004983013446511809, 0.0042981017977000565, 0.00030218793228204354, 0.004274871147354223,
     0.00039937871536033985, 0.003781573274428322},
    {2047, 2048, 0.95, 0.9972392640467791, 0.9999138011690629, 0.9972825055060337, 0.999987637865482,
     0.9976857760288456, 0.9999749547597371},
    {500000, 1000000, 0.95, 0.4990200198900048, 0.5009799801099952, 0.49901951919531184, 0.5009804808046882,
     0.4991770739494771, 0.5008229260505229},
    {1, 1000000, 0.95, 1.7652457674537152e-07, 5.664911804311441e-06, 2.53178076637942e-08, 5.571630655166939e-06,
     5.1293293072049574e-08, 4.743855638214234e-06},
    {0, 1000000, 0.95, 0.0, 3.841444063944941e-06, 0.0, 3.688872650206488e-06, 0.0, 2.9957277863525433e-06},
    {999999, 1000000, 0.95, 0.9999943350881957, 0.9999998234754233, 0.9999944283693448, 0.9999999746821924,
     0.9999952561443618, 0.9999999487067069},
};

TEST(WilsonInterval, EqualsGoldenValues) {
  for (const auto& point : kProportions) {
    const std::string label = std::to_string(point.successes) + "/" + std::to_string(point.trials);
    const Interval interval = wilson_interval(point.successes, point.trials, point.confidence);
    expect_close(interval.low, point.wilson_low, label);
    expect_close(interval.high, point.wilson_high, label);
  }
}

TEST(ClopperPearson, EqualsGoldenValuesTwoSidedAndOneSided) {
  for (const auto& point : kProportions) {
    const std::string label = std::to_string(point.successes) + "/" + std::to_string(point.trials);
    const Interval interval = clopper_pearson_interval(point.successes, point.trials, point.confidence);
    expect_close(interval.low, point.exact_low, label);
    expect_close(interval.high, point.exact_high, label);
    expect_close(clopper_pearson_lower(point.successes, point.trials, point.confidence), point.lower, label);
    expect_close(clopper_pearson_upper(point.successes, point.trials, point.confidence), point.upper, label);
  }
}

TEST(ClopperPearson, AllowsAFiftyThreePerCentRateAfterFourCleanRuns) {  // lesson 52
  EXPECT_NEAR(clopper_pearson_upper(0, 4), 0.527129, 1e-6);
  expect_close(clopper_pearson_upper(0, 4), 1 - std::pow(0.05, 0.25), "closed form", 1e-13);
}

TEST(ProportionIntervals, RefuseImpossibleCounts) {
  for (const auto& [k, n] : {std::pair<int64_t, int64_t>{0, 0}, {1, 0}, {-1, 4}, {5, 4}, {0, -1}}) {
    EXPECT_THROW(wilson_interval(k, n), UsageError) << k << "/" << n;
    EXPECT_THROW(clopper_pearson_interval(k, n), UsageError) << k << "/" << n;
    EXPECT_THROW(clopper_pearson_upper(k, n), UsageError) << k << "/" << n;
    EXPECT_THROW(clopper_pearson_lower(k, n), UsageError) << k << "/" << n;
  }
  for (const double bad : {0.0, 1.0, 95.0, -0.5, kNan}) {
    EXPECT_THROW(wilson_interval(1, 2, bad), UsageError);
    EXPECT_THROW(clopper_pearson_interval(1, 2, bad), UsageError);
    EXPECT_THROW(t_interval(kTreated, bad), UsageError);
  }
}

void expect_interval(const MeanInterval& interval, double mean, double low, double high, double sd) {
  expect_close(interval.mean, mean, "mean");
  expect_close(interval.low, low, "low");
  expect_close(interval.high, high, "high");
  expect_close(interval.sd, sd, "sd");
}

TEST(TInterval, EqualsGoldenValues) {
  expect_interval(t_interval(kTreated), 0.6065833333333333, 0.5977442041781457, 0.6154224624885208,
                  0.013911789201532604);
  expect_interval(t_interval(kTreated, 0.8), 0.6065833333333333, 0.6011078140551478, 0.6120588526115187,
                  0.013911789201532604);
  expect_interval(t_interval(std::vector<double>{1, 2}), 1.5, -4.853102368087347, 7.853102368087347,
                  0.7071067811865476);
  expect_interval(t_interval(std::vector<double>{1e8 + 1, 1e8 + 2, 1e8 + 4}), 100000002.33333333, 99999998.53875029,
                  100000006.12791637, 1.5275252316519465);
  EXPECT_EQ(t_interval(kTreated).count, 12);
}

TEST(PairedTInterval, EqualsGoldenValues) {
  expect_interval(paired_t_interval(kTreated, kControl), 0.03483333333333333, 0.024369150962360413, 0.04529751570430624,
                  0.016469439099205032);
  expect_interval(paired_t_interval(kTreated, kControl, 0.99), 0.03483333333333333, 0.020067342913749668,
                  0.049599323752916986, 0.016469439099205032);
}

TEST(MeanIntervals, RefuseTooFewUnequalOrBrokenValues) {
  EXPECT_THROW(t_interval(std::vector<double>{1}), UsageError);
  EXPECT_THROW(t_interval({}), UsageError);
  EXPECT_THROW(mean_of({}), UsageError);
  EXPECT_THROW(sd_of(std::vector<double>{1}), UsageError);
  EXPECT_THROW(t_interval(std::vector<double>{1, kNan}), UsageError);
  EXPECT_THROW(paired_t_interval(kTreated, std::vector<double>{1, 2}), UsageError);
  EXPECT_THROW(bootstrap_interval(std::vector<double>{1}, mean_of), UsageError);
  EXPECT_THROW(bootstrap_interval(kTreated, mean_of, {.resamples = 10}), UsageError);
  EXPECT_THROW(bootstrap_interval(kTreated, [](auto) { return kNan; }), UsageError);
}

TEST(MeanOf, DoesNotOverflow) { expect_close(mean_of(std::vector<double>{1e308, 1.5e308}), 1.25e308, "mean"); }

// Golden: scipy.stats.bootstrap. Tolerance: four standard errors of a quantile of 100,000 resamples, about 0.01 here.
TEST(Bootstrap, AgreesWithScipyForBothMethods) {
  const auto expect_near = [](BootstrapMethod method, double confidence, double low, double high) {
    const Interval interval = bootstrap_interval(
        kSkewed, mean_of, {.confidence = confidence, .resamples = 100'000, .seed = 3, .method = method});
    EXPECT_NEAR(interval.low, low, 0.01);
    EXPECT_NEAR(interval.high, high, 0.015);
  };
  expect_near(BootstrapMethod::kPercentile, 0.95, 0.62733, 1.68000);
  expect_near(BootstrapMethod::kPercentile, 0.8, 0.75000, 1.45133);
  expect_near(BootstrapMethod::kBca, 0.95, 0.69733, 1.88800);
  expect_near(BootstrapMethod::kBca, 0.8, 0.81000, 1.56333);
}

TEST(Bootstrap, RepeatsForASeedAndDiffersForAnother) {
  const Interval first = bootstrap_interval(kSkewed, mean_of, {.seed = 1});
  const Interval again = bootstrap_interval(kSkewed, mean_of, {.seed = 1});
  const Interval other = bootstrap_interval(kSkewed, mean_of, {.seed = 2});
  EXPECT_EQ(first.low, again.low);
  EXPECT_EQ(first.high, again.high);
  EXPECT_NE(first.low, other.low);
}

TEST(Bootstrap, OfEqualValuesIsThatValue) {
  const Interval interval = bootstrap_interval(std::vector<double>(7, 0.25), mean_of);
  EXPECT_EQ(interval.low, 0.25);
  EXPECT_EQ(interval.high, 0.25);
}

TEST(Bootstrap, CoversTheTruthAboutAsOftenAsItClaims) {
  int covered = 0;
  constexpr int kTrials = 400;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values;
    for (uint64_t i = 0; i < 40; ++i) values.push_back(static_cast<double>(mix64(trial, i) >> 11) * 0x1p-53);
    const Interval interval = bootstrap_interval(values, mean_of, {.confidence = 0.9, .resamples = 500, .seed = trial});
    covered += interval.low <= 0.5 && 0.5 <= interval.high;
  }
  EXPECT_NEAR(covered, 0.9 * kTrials, 24);  // SD 6
}

}  // namespace stats_intervals_test
}  // namespace faultline
