// The deviates: moments to the fourth order, Kolmogorov-Smirnov, tails, and independence of neighbours, calls and
// sites.
#include "numeric/gaussian.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "base/stats/distributions.h"
#include "base/stats/stats.h"
#include "numeric/arithmetic.h"
#include "numeric/lower.h"

namespace faultline::numeric {
namespace gaussian_test {

std::vector<double> draw32(std::size_t count, uint64_t key, uint32_t call = 0) {
  std::vector<double> values(count);
  Control control;
  control.call = call;
  for (std::size_t i = 0; i < count; ++i)
    values[i] = gaussian32(element_words(control, key, i / 4, kGaussianStream).word[i % 4], kGaussian32);
  return values;
}

double moment(const std::vector<double>& values, int power) {
  double sum = 0;
  for (const double v : values) sum += std::pow(v, power);
  return sum / static_cast<double>(values.size());
}

double correlation(const std::vector<double>& a, const std::vector<double>& b, std::size_t shift = 0) {
  double sum = 0;
  for (std::size_t i = 0; i + shift < a.size(); ++i) sum += a[i] * b[i + shift];
  return sum / static_cast<double>(a.size() - shift);
}

TEST(Gaussian, HasTheMomentsOfANormalDistribution) {
  const auto values = draw32(1 << 22, 5);
  const double n = static_cast<double>(values.size());
  EXPECT_LT(std::fabs(moment(values, 1)), 5 / std::sqrt(n));
  EXPECT_LT(std::fabs(moment(values, 2) - 1), 5 * std::sqrt(2 / n));
  EXPECT_LT(std::fabs(moment(values, 3)), 5 * std::sqrt(15 / n));
  EXPECT_LT(std::fabs(moment(values, 4) - 3), 5 * std::sqrt(96 / n));
}

TEST(Gaussian, PassesKolmogorovSmirnovAndHasItsTails) {
  auto values = draw32(1 << 22, 17);
  const KsResult ks = ks_test(values, [](double x) { return normal_cdf(x); });
  EXPECT_GT(ks.p_value, 1e-4);
  const double n = static_cast<double>(values.size());
  for (const double sigma : {3.0, 4.0}) {
    const double expected = 2 * normal_cdf(-sigma) * n;
    const auto beyond = std::count_if(values.begin(), values.end(), [&](double v) { return std::fabs(v) > sigma; });
    EXPECT_NEAR(static_cast<double>(beyond), expected, 5 * std::sqrt(expected)) << sigma;
  }
}

TEST(Gaussian, Of16BitWordsHasUnitVarianceAndEndsAt4Point17) {
  double sum = 0, squares = 0, fourth = 0, largest = 0;
  std::vector<double> magnitudes;
  for (uint32_t word = 0; word < 65536; ++word) {
    const double z = gaussian16(word, kGaussian16);
    sum += z, squares += z * z, fourth += z * z * z * z;
    largest = std::max(largest, std::fabs(z));
  }
  EXPECT_NEAR(sum / 65536, 0, 1e-12);
  EXPECT_NEAR(squares / 65536, 1, 1e-6);
  EXPECT_NEAR(fourth / 65536, 3, 0.01);
  EXPECT_NEAR(largest, 4.17, 0.02);
}

TEST(Gaussian, FollowsTheInverseNormalDistribution) {
  for (uint32_t odd = 1; odd < 32768; odd += 2) {
    EXPECT_NEAR(gaussian16(odd, kGaussian16), -normal_quantile(odd / 65536.0), 4e-3) << odd;
  }
}

TEST(Gaussian, IsUncorrelatedBetweenNeighboursCallsAndSites) {
  const std::size_t n = 1 << 20;
  const double bound = 5 / std::sqrt(static_cast<double>(n));
  const Keys here = make_keys({1, "layers.0.mlp.down_proj", 0}, "rule"),
             there = make_keys({1, "layers.1.mlp.down_proj", 0}, "rule");
  const auto a = draw32(n, here.noise, 0), next_call = draw32(n, here.noise, 1), other_site = draw32(n, there.noise, 0);
  EXPECT_LT(std::fabs(correlation(a, a, 1)), bound);
  EXPECT_LT(std::fabs(correlation(a, a, 4)), bound);
  EXPECT_LT(std::fabs(correlation(a, next_call)), bound);
  EXPECT_LT(std::fabs(correlation(a, other_site)), bound);
}

TEST(Keys, DifferBySeedRuleAndSiteOnly) {
  const Keys base = make_keys({1, "site", 0}, "rule");
  EXPECT_EQ(base.noise, make_keys({1, "site", 3}, "rule").noise);  // the phase is part of the counter
  EXPECT_NE(base.noise, make_keys({2, "site", 0}, "rule").noise);
  EXPECT_NE(base.noise, make_keys({1, "site2", 0}, "rule").noise);
  EXPECT_NE(base.noise, make_keys({1, "site", 0}, "rule2").noise);
  EXPECT_NE(base.noise, base.mask);
}

}  // namespace gaussian_test
}  // namespace faultline::numeric
