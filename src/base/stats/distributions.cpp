// The incomplete beta function with its roots, and the term that carries the accuracy of all that rests on it, x^a
// (1-x)^b / B(a, b), computed by deviances; the normal distribution; then Student's t (central and not), binomial and
// hypergeometric distributions, which are readings of the incomplete beta function.
#include "base/stats/distributions.h"

#include <fmt/format.h>
#include <math.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

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

// Wichura's rational functions: numerator and denominator, lowest power first.
struct Rational {
  double top[8];
  double bottom[8];
};
constexpr Rational kCentre = {
    {3.3871328727963666080e0, 1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
     4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3},
    {1.0, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3, 2.1213794301586595867e+4,
     3.9307895800092710610e+4, 2.8729085735721942674e+4, 5.2264952788528545610e+3}};
constexpr Rational kNear = {
    {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4},
    {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
     1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9}};
constexpr Rational kFar = {
    {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7},
    {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
     1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15}};

double evaluate(const Rational& rational, double x) {
  double top = 0, bottom = 0;
  for (size_t i = 8; i-- > 0;) {
    top = top * x + rational.top[i];
    bottom = bottom * x + rational.bottom[i];
  }
  return top / bottom;
}

void require_trials(int64_t successes, int64_t trials, double probability) {
  if (trials < 0 || successes < 0 || successes > trials) {
    throw UsageError(fmt::format("successes must be in 0..trials; got {} of {}", successes, trials));
  }
  require(probability >= 0 && probability <= 1, "probability", probability, "in [0, 1]");
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

double normal_cdf(double x) {
  require(!std::isnan(x), "x", x, "a number");
  return 0.5 * std::erfc(-x / std::numbers::sqrt2);
}

double normal_quantile(double probability) {
  require(probability > 0 && probability < 1, "probability", probability, "in (0, 1)");
  const double centred = probability - 0.5;
  if (std::abs(centred) <= 0.425) return centred * evaluate(kCentre, 0.180625 - centred * centred);
  const double r = std::sqrt(-std::log(std::min(probability, 1 - probability)));
  const double tail = r <= 5 ? evaluate(kNear, r - 1.6) : evaluate(kFar, r - 5);
  return centred < 0 ? -tail : tail;
}

double student_t_upper_tail(double t, double degrees) {
  require(!std::isnan(t), "t", t, "a number");
  require(degrees > 0 && std::isfinite(degrees), "degrees", degrees, "finite and > 0");
  if (std::isinf(t)) return t > 0 ? 0 : 1;
  const double square = t * t;
  // The smaller of the two fractions is formed directly: 1 - x would lose it.
  const double both = square < degrees ? beta_tails(0.5, degrees / 2, square / (degrees + square)).upper
                                       : beta_tails(degrees / 2, 0.5, degrees / (degrees + square)).lower;
  return t >= 0 ? both / 2 : 1 - both / 2;
}

double student_t_upper_quantile(double tail, double degrees) {
  require(tail > 0 && tail < 1, "tail", tail, "in (0, 1)");
  require(degrees > 0 && std::isfinite(degrees), "degrees", degrees, "finite and > 0");
  if (tail == 0.5) return 0;
  if (tail > 0.5) return -student_t_upper_quantile(1 - tail, degrees);
  const BetaRoot root = beta_root_lower(degrees / 2, 0.5, 2 * tail);  // x = degrees / (degrees + t^2)
  return std::sqrt(degrees * (root.one_minus_x / root.x));
}

double noncentral_t_upper_tail(double t, double degrees, double shift) {
  require(t >= 0 && std::isfinite(t), "t", t, "finite and >= 0");
  require(degrees > 0 && std::isfinite(degrees), "degrees", degrees, "finite and > 0");
  require(std::isfinite(shift), "shift", shift, "finite");
  if (shift == 0) return student_t_upper_tail(t, degrees);
  const double x = degrees / (degrees + t * t), rate = shift * shift / 2, log_rate = std::log(rate);
  // Poisson weights below exp(-60) of their peak do not reach the last digit.
  const double reach = 12 * std::sqrt(rate) + 60;
  double sum = 0;
  for (double j = std::max(0.0, std::floor(rate - reach)); j <= rate + reach; ++j) {
    const double even = std::exp(-rate + j * log_rate - log_gamma(j + 1));
    const double odd = shift / std::numbers::sqrt2 * std::exp(-rate + j * log_rate - log_gamma(j + 1.5));
    sum += even * incomplete_beta(degrees / 2, j + 0.5, x) + odd * incomplete_beta(degrees / 2, j + 1, x);
  }
  return std::clamp(sum / 2, 0.0, 1.0);
}

double binomial_pmf(int64_t successes, int64_t trials, double probability) {
  require_trials(successes, trials, probability);
  if (probability == 0) return successes == 0 ? 1 : 0;
  if (probability == 1) return successes == trials ? 1 : 0;
  const auto k = static_cast<double>(successes), n = static_cast<double>(trials);
  return beta_term(k + 1, n - k + 1, probability) / (probability * (1 - probability) * (n + 1));
}

double binomial_upper_tail(int64_t successes, int64_t trials, double probability) {
  require_trials(successes, trials, probability);
  if (successes == 0) return 1;
  return beta_tails(static_cast<double>(successes), static_cast<double>(trials - successes + 1), probability).lower;
}

double binomial_lower_tail(int64_t successes, int64_t trials, double probability) {
  require_trials(successes, trials, probability);
  if (successes == trials) return 1;
  return beta_tails(static_cast<double>(successes + 1), static_cast<double>(trials - successes), probability).upper;
}

double hypergeometric_pmf(int64_t white, int64_t white_total, int64_t black_total, int64_t drawn) {
  if (white_total < 0 || black_total < 0 || drawn < 0 || drawn > white_total + black_total) {
    throw UsageError(fmt::format("cannot draw {} from an urn of {} + {}", drawn, white_total, black_total));
  }
  const int64_t black = drawn - white;
  if (white < 0 || white > white_total || black < 0 || black > black_total) return 0;
  const int64_t total = white_total + black_total;
  if (drawn == 0 || drawn == total) return 1;
  // Loader: conditioned on their sum, two binomials of equal probability are hypergeometric.
  const double share = static_cast<double>(drawn) / static_cast<double>(total);
  return binomial_pmf(white, white_total, share) * binomial_pmf(black, black_total, share) /
         binomial_pmf(drawn, total, share);
}

}  // namespace faultline
