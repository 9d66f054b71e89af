// Distributions against golden values: mpmath 1.3 with 40 digits (noncentral t by numerical integration), scipy 1.17
// where a size is out of its reach. Tails as small as 1e-300 and sizes to a billion are among them.
#include "base/stats/distributions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace faultline {
namespace distributions_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_close(double value, double golden, const std::string& label, double relative = 1e-9) {
  EXPECT_LE(std::abs(value - golden), relative * std::abs(golden)) << label << ": " << value << " for " << golden;
}

struct Point {
  double x, golden;
};
const Point kNormalCdf[] = {
    {-38.0, 2.88542835e-316},
    {-20.0, 2.7536241186062337e-89},
    {-8.0, 6.220960574271784e-16},
    {-3.0, 0.0013498980316300946},
    {-1.96, 0.024997895148220435},
    {-1e-08, 0.4999999960105772},
    {0.0, 0.5},
    {0.5, 0.6914624612740131},
    {1.2815515655446004, 0.9},
    {5.0, 0.9999997133484281},
    {9.0, 1.0},
};
const Point kNormalQuantile[] = {
    {1e-300, -37.0470962993612},      {1e-100, -21.273453560965326}, {1e-20, -9.262340089798407},
    {1e-08, -5.612001244174789},      {0.001, -3.0902323061678136},  {0.025, -1.9599639845400543},
    {0.074, -1.4466320671589785},     {0.076, -1.4325027208258116},  {0.4, -0.2533471031357997},
    {0.5001, 0.00025066283008800747}, {0.9, 1.2815515655446006},     {0.975, 1.9599639845400538},
    {0.999999, 4.753424308817087},
};

TEST(Normal, CdfEqualsGoldenValues) {
  for (const auto& [x, golden] : kNormalCdf) expect_close(normal_cdf(x), golden, std::to_string(x), 1e-13);
}

TEST(Normal, QuantileEqualsGoldenValues) {
  for (const auto& [p, golden] : kNormalQuantile) expect_close(normal_quantile(p), golden, std::to_string(p), 1e-14);
  EXPECT_EQ(normal_quantile(0.5), 0.0);
}

struct BetaPoint {
  double a, b, x, lower, upper;
};
const BetaPoint kBeta[] = {
    {0.5, 0.5, 0.3, 0.36901011956554536, 0.6309898804344546},
    {1.0, 1.0, 0.7, 0.7, 0.30000000000000004},
    {2.0, 3.0, 0.5, 0.6875, 0.3125},
    {0.001, 2.0, 0.1, 0.9985979938799936, 0.0014020061200063847},
    {5.0, 0.01, 0.999, 0.047204119992922754, 0.9527958800070773},
    {10.0, 1.0, 1e-30, 1.0000000000000009e-300, 1.0},
    {100.0, 200.0, 0.3, 0.10884306564490975, 0.8911569343550902},
    {100.0, 200.0, 0.5, 0.9999999973534454, 2.6465546025796367e-09},
    {10000.0, 10000.0, 0.5, 0.5, 0.5},
    {10000.0, 10000.0, 0.49, 0.0023370593301101496, 0.9976629406698898},
    {1.0, 1000000.0, 1e-06, 0.632120742768355, 0.3678792572316451},
    {500000.0, 500000.0, 0.501, 0.9772499490383677, 0.022750050961631484},
    {1000000.0, 3.0, 0.999999, 0.9196983270134521, 0.08030167298654797},
    {0.5, 500.0, 0.01, 0.998472642120947, 0.0015273578790529964},
    {30.0, 40.0, 0.9, 1.0, 1.2120605905517758e-22},
    {3.0, 1000000000.0, 2e-09, 0.32332358489961893, 0.6766764151003811},
};

TEST(IncompleteBeta, EqualsGoldenValuesInBothTails) {
  for (const auto& [a, b, x, lower, upper] : kBeta) {
    const std::string label = std::to_string(a) + " " + std::to_string(b) + " " + std::to_string(x);
    expect_close(beta_tails(a, b, x).lower, lower, label);
    expect_close(beta_tails(a, b, x).upper, upper, label);
    expect_close(incomplete_beta(a, b, x), lower, label);
  }
}

TEST(IncompleteBeta, IsAsAccurateNearOneAsNearZero) {
  const double x = 1 - 2e-9;  // 1 - x is exact in binary
  expect_close(beta_tails(1e9, 3, x).upper, beta_tails(3, 1e9, 1 - x).lower, "upper", 1e-13);
  expect_close(beta_tails(1e9, 3, x).lower, beta_tails(3, 1e9, 1 - x).upper, "lower", 1e-13);
}

TEST(IncompleteBeta, IsZeroAndOneAtTheEnds) {
  EXPECT_EQ(incomplete_beta(2, 3, 0), 0.0);
  EXPECT_EQ(incomplete_beta(2, 3, 1), 1.0);
}

TEST(BetaRoot, InvertsTheTailsOnBothSidesOfAHalf) {
  for (const double probability : {1e-200, 1e-9, 0.025, 0.5, 0.975}) {
    for (const auto& [a, b] : {std::pair{0.5, 3.0}, {3.0, 0.5}, {1.0, 1e6}, {1e6, 1.0}, {40.0, 50.0}}) {
      const BetaRoot lower = beta_root_lower(a, b, probability), upper = beta_root_upper(a, b, probability);
      // A root near 1 is known by its distance from 1, in which the mirrored function has the same tails.
      const auto tails = [a = a, b = b](const BetaRoot& root) {
        if (root.x <= 0.5) return beta_tails(a, b, root.x);
        const BetaTails mirrored = beta_tails(b, a, root.one_minus_x);
        return BetaTails{mirrored.upper, mirrored.lower};
      };
      if (lower.x > 1e-300) expect_close(tails(lower).lower, probability, "lower", 1e-12);
      if (upper.one_minus_x > 1e-300) expect_close(tails(upper).upper, probability, "upper", 1e-12);
      EXPECT_NEAR(lower.x + lower.one_minus_x, 1, 1e-15);
    }
  }
}

TEST(BetaRoot, KeepsItsDigitsWhereXIsTiny) {
  // I_x(1, b) = 1 - (1-x)^b, so the root is -expm1(log1p(-p) / b).
  expect_close(beta_root_lower(1, 1e9, 0.025).x, -std::expm1(std::log1p(-0.025) / 1e9), "lower", 1e-12);
  expect_close(beta_root_upper(1, 1e9, 0.025).x, -std::expm1(std::log(0.025) / 1e9), "upper", 1e-12);
}

struct TailPoint {
  double x, degrees, golden;
};
const TailPoint kTail[] = {
    {0.0, 1.0, 0.5},
    {1.0, 1.0, 0.25},
    {12.7062047364321, 1.0, 0.02499999999949564},
    {1000000.0, 1.0, 3.1830988618368455e-07},
    {2.5, 3.0, 0.04385332350403277},
    {-2.5, 3.0, 0.9561466764959672},
    {2.2009851600829, 11.0, 0.025000000000381654},
    {0.001, 11.0, 0.49961001031385055},
    {40.0, 11.0, 1.4462704490602862e-13},
    {1.96, 1000.0, 0.02513659247787436},
    {8.0, 1000000.0, 6.227531716601252e-16},
    {3.0, 0.5, 0.18365407799297173},
};
const TailPoint kQuantile[] = {
    {0.025, 1.0, 12.706204736174705},  {1e-09, 1.0, 318309886.1837907},        {0.025, 2.0, 4.302652729749464},
    {0.05, 4.0, 2.131846786326651},    {0.025, 11.0, 2.2009851600916392},      {0.005, 11.0, 3.105806515539281},
    {1e-12, 11.0, 33.507191552725054}, {0.49, 7.0, 0.025977941569516962},      {0.975, 11.0, -2.200985160091639},
    {0.025, 99.0, 1.9842169515864176}, {0.025, 1000000.0, 1.9599663568141072}, {0.25, 3.0, 0.7648923284043444},
};

TEST(StudentT, TailEqualsGoldenValues) {
  for (const auto& [t, degrees, golden] : kTail) {
    expect_close(student_t_upper_tail(t, degrees), golden, std::to_string(t) + " " + std::to_string(degrees));
  }
}

TEST(StudentT, QuantileEqualsGoldenValues) {
  for (const auto& [tail, degrees, golden] : kQuantile) {
    expect_close(student_t_upper_quantile(tail, degrees), golden, std::to_string(tail) + " " + std::to_string(degrees));
  }
  EXPECT_EQ(student_t_upper_quantile(0.5, 3), 0.0);
}

struct ShiftedPoint {
  double t, degrees, shift, golden;
};
const ShiftedPoint kShifted[] = {
    {2.2009851600829, 11.0, 3.13, 0.8127875170648005},
    {2.2009851600829, 11.0, 0.1, 0.030863139012505723},
    {12.7062, 1.0, 2.0, 0.1252235435104829},
    {4.3026527, 2.0, 1.0, 0.09131778547083252},
    {1.98, 99.0, 2.8, 0.7930290141067197},
    {2.0, 11.0, -1.0, 0.0030947961919800286},
    {2.2, 11.0, 6.0, 0.9997322509772619},
    {0.0, 5.0, 1.0, 0.8413447460685429},
    {1.7, 30.0, 5.0, 0.9993932130988663},
};

TEST(NoncentralT, TailEqualsGoldenValues) {
  for (const auto& [t, degrees, shift, golden] : kShifted) {
    expect_close(noncentral_t_upper_tail(t, degrees, shift), golden, std::to_string(t) + " " + std::to_string(shift));
  }
}

TEST(NoncentralT, IsCertainFarFromTheThreshold) {
  EXPECT_NEAR(noncentral_t_upper_tail(2.2, 11, 500), 1.0, 1e-9);
  EXPECT_NEAR(noncentral_t_upper_tail(2.2, 11, -500), 0.0, 1e-9);
}

struct BinomialPoint {
  int64_t successes, trials;
  double probability, pmf, upper, lower;
};
const BinomialPoint kBinomial[] = {
    {0, 1, 0.3, 0.7, 1.0, 0.7},
    {1, 1, 0.3, 0.3, 0.3, 1.0},
    {0, 20, 0.01, 0.8179069375972309, 1.0, 0.8179069375972309},
    {20, 20, 0.01, 1.0000000000000003e-40, 1.0000000000000003e-40, 1.0},
    {7, 20, 0.5, 0.0739288330078125, 0.9423408508300781, 0.13158798217773438},
    {923, 1319, 0.7, 0.023955779696293, 0.5207605442552793, 0.5031952354410136},
    {1000, 1319, 0.7, 4.003064773299142e-07, 1.5129797119284262e-06, 0.9999988873267655},
    {3, 1319, 0.0001, 0.00033453281014631127, 0.0003458360214639086, 0.9999886967886824},
    {2000, 4000, 0.5, 0.012614874155835334, 0.5063074370779177, 0.5063074370779177},
};

TEST(Binomial, EqualsGoldenValues) {
  for (const auto& point : kBinomial) {
    const std::string label = std::to_string(point.successes) + "/" + std::to_string(point.trials);
    expect_close(binomial_pmf(point.successes, point.trials, point.probability), point.pmf, label, 1e-12);
    expect_close(binomial_upper_tail(point.successes, point.trials, point.probability), point.upper, label, 1e-12);
    expect_close(binomial_lower_tail(point.successes, point.trials, point.probability), point.lower, label, 1e-12);
  }
}

TEST(Binomial, IsCertainAtProbabilityZeroAndOne) {
  EXPECT_EQ(binomial_pmf(0, 5, 0), 1.0);
  EXPECT_EQ(binomial_pmf(1, 5, 0), 0.0);
  EXPECT_EQ(binomial_pmf(5, 5, 1), 1.0);
  EXPECT_EQ(binomial_upper_tail(1, 5, 0), 0.0);
  EXPECT_EQ(binomial_lower_tail(4, 5, 1), 0.0);
}

struct UrnPoint {
  int64_t white, white_total, black_total, drawn;
  double golden;
};
const UrnPoint kUrn[] = {
    {0, 5, 5, 5, 0.003968253968253968},
    {3, 5, 5, 5, 0.3968253968253968},
    {5, 5, 5, 5, 0.003968253968253968},
    {10, 30, 70, 20, 0.02223761787918498},
    {900, 1700, 938, 1319, 8.257785992123643e-06},
    {1319, 1700, 938, 1319, 0.0},
    {0, 2, 3, 0, 1.0},
    {1, 1, 10000, 1, 9.999000099990002e-05},
};

TEST(Hypergeometric, EqualsExactFractions) {
  for (const auto& point : kUrn) {
    expect_close(hypergeometric_pmf(point.white, point.white_total, point.black_total, point.drawn), point.golden,
                 std::to_string(point.white) + " of " + std::to_string(point.drawn), 1e-11);
  }
  EXPECT_EQ(hypergeometric_pmf(6, 5, 5, 6), 0.0);
}

TEST(Distributions, RefuseArgumentsOutsideTheirDomain) {
  EXPECT_THROW(normal_cdf(kNan), UsageError);
  for (const double bad : {0.0, 1.0, -0.1, kNan}) {
    EXPECT_THROW(normal_quantile(bad), UsageError);
    EXPECT_THROW(beta_root_lower(1, 1, bad), UsageError);
    EXPECT_THROW(student_t_upper_quantile(bad, 3), UsageError);
  }
  for (const double bad : {0.0, -1.0, kNan, kInfinity}) {
    EXPECT_THROW(incomplete_beta(bad, 1, 0.5), UsageError);
    EXPECT_THROW(incomplete_beta(1, bad, 0.5), UsageError);
    EXPECT_THROW(student_t_upper_tail(1, bad), UsageError);
    EXPECT_THROW(noncentral_t_upper_tail(1, bad, 1), UsageError);
  }
  for (const double bad : {-0.1, 1.1, kNan}) {
    EXPECT_THROW(incomplete_beta(1, 1, bad), UsageError);
    EXPECT_THROW(binomial_pmf(1, 2, bad), UsageError);
  }
  EXPECT_THROW(noncentral_t_upper_tail(-1, 3, 1), UsageError);
  EXPECT_THROW(binomial_pmf(3, 2, 0.5), UsageError);
  EXPECT_THROW(hypergeometric_pmf(0, 2, 2, 5), UsageError);
}

}  // namespace distributions_test
}  // namespace faultline
