// The incomplete beta function, its roots, and the term that carries the accuracy of every distribution built on it:
// x^a (1-x)^b / B(a, b), computed by deviances (see distributions.h).
#include <fmt/format.h>
#include <math.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/distributions.h"
#include "base/error.h"

namespace faultline {
namespace {

void require(bool fine, const char* name, double value, const char* range) {
  if (!fine) throw UsageError(fmt::format("{} must be {}; got {}", name, range, value));
}

double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);  // std::lgamma writes a global, a race between threads
}

// log Gamma(x) - [(x - 1/2) log x - x + log(2 pi)/2]
double stirling_error(double x) {
  if (x < 10) return log_gamma(x) - ((x - 0.5) * std::log(x) - x + 0.5 * std::log(2 * std::numbers::pi));
  constexpr double kSeries[] = {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188, -691.0 / 360360};
  double series = 0;
  for (size_t i = std::size(kSeries); i-- > 0;) series = series / (x * x) + kSeries[i];
  return series / x;
}

// observed * log(observed / expected) + expected - observed, given their difference without cancellation.
double deviance(double observed, double expected, double difference) {
  if (std::abs(difference) >= 0.1 * (observed + expected)) {
    return observed * std::log(observed / expected) - difference;
  }
  const double v = difference / (observed + expected);
  double sum = difference * v, term = 2 * observed * v;
  for (int j = 1; j < 1000; ++j) {
    term *= v * v;
    const double next = sum + term / (2 * j + 1);
    if (next == sum) break;
    sum = next;
  }
  return sum;
}

// x^a y^b / (B(a, b) I_x(a, b)), y = 1 - x, as a continued fraction (Didonato and Morris 1992, TOMS 708) by Lentz's
// method; converges fast for x < (a+1)/(a+b+2). It takes y apart from x: near x = 1 the value lives in y alone.
double beta_fraction(double a, double b, double x, double y) {
  constexpr double kTiny = 1e-300;
  const auto away_from_zero = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  const double start = a * y - b * x + 1;
  double value = away_from_zero(a * start / (a + 1)), c = value, d = 0;
  for (int64_t i = 1; i < 10'000'000; ++i) {
    const auto m = static_cast<double>(i);
    const double odd = a + 2 * m - 1;
    const double numerator = (a + m - 1) * (a + b + m - 1) / (odd * odd) * m * (b - m) * x * x;
    const double denominator = m + m * (b - m) * x / odd + (a + m) * (start + m * (2 - x)) / (a + 2 * m + 1);
    d = 1 / away_from_zero(denominator + numerator * d);
    c = away_from_zero(denominator + numerator / c);
    value *= c * d;
    if (std::abs(c * d - 1) < 2 * std::numeric_limits<double>::epsilon()) return value;
  }
  throw UsageError(fmt::format("the incomplete beta function does not converge at a = {}, b = {}, x = {}", a, b, x));
}

// The x in (0, 1/2] where rising(x), monotone, crosses the target; geometric bisection first, so that 1e-200 is found
// too.
template <typename Function>
double bisect_small(const Function& rising, double target) {
  double low = std::numeric_limits<double>::min(), high = 0.5;
  for (int i = 0; i < 200; ++i) {
    const double middle = high > 4 * low ? std::sqrt(low) * std::sqrt(high) : low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (rising(middle) < target ? low : high) = middle;
  }
  return low + (high - low) / 2;
}

}  // namespace

double beta_term(double a, double b, double x) {
  require(x > 0 && x < 1, "x", x, "in (0, 1)");
  const double total = a + b, y = 1 - x;
  const double difference = x <= 0.5 ? a - total * x : total * y - b;
  const double log_term = stirling_error(total) - stirling_error(a) - stirling_error(b) -
                          deviance(a, total * x, difference) - deviance(b, total * y, -difference);
  return std::sqrt(a / total * b / (2 * std::numbers::pi)) * std::exp(log_term);
}

BetaTails beta_tails(double a, double b, double x) {
  require(a > 0 && std::isfinite(a), "a", a, "finite and > 0");
  require(b > 0 && std::isfinite(b), "b", b, "finite and > 0");
  require(x >= 0 && x <= 1, "x", x, "in [0, 1]");
  if (x == 0) return {0, 1};
  if (x == 1) return {1, 0};
  const double term = beta_term(a, b, x);
  if (x < (a + 1) / (a + b + 2)) {
    const double lower = std::min(1.0, term / beta_fraction(a, b, x, 1 - x));
    return {lower, 1 - lower};
  }
  const double upper = std::min(1.0, term / beta_fraction(b, a, 1 - x, x));
  return {1 - upper, upper};
}

double incomplete_beta(double a, double b, double x) { return beta_tails(a, b, x).lower; }

BetaRoot beta_root_lower(double a, double b, double probability) {
  require(probability > 0 && probability < 1, "probability", probability, "in (0, 1)");
  if (beta_tails(a, b, 0.5).lower >= probability) {
    const double x = bisect_small([&](double v) { return beta_tails(a, b, v).lower; }, probability);
    return {x, 1 - x};
  }
  // Mirrored: in y = 1 - x the lower tail is beta(b, a)'s upper tail, which falls with y.
  const double y = bisect_small([&](double v) { return -beta_tails(b, a, v).upper; }, -probability);
  return {1 - y, y};
}

BetaRoot beta_root_upper(double a, double b, double probability) {
  const BetaRoot mirrored = beta_root_lower(b, a, probability);
  return {mirrored.one_minus_x, mirrored.x};
}

}  // namespace faultline
