// How many seeds or questions an experiment needs, and what it could have seen. Power of the paired t test is exact
// (noncentral t); power of two proportions is that of the z test with the variance pooled under the null. Required
// sizes are found by doubling and bisection on the very function that reports the power.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/stats/distributions.h"
#include "base/stats/stats.h"

namespace faultline {
namespace {

constexpr int64_t kMostTrials = 1'000'000'000;
constexpr int64_t kMostPairs = 10'000'000;

void require_open_unit(const char* name, double value) {
  if (!(value > 0 && value < 1)) throw UsageError(fmt::format("{} must be in (0, 1); got {}", name, value));
}

void require_finite(const char* name, double value) {
  if (!std::isfinite(value)) throw UsageError(fmt::format("{} must be finite; got {}", name, value));
}

void require_sd(double sd) {
  if (!(std::isfinite(sd) && sd > 0)) throw UsageError(fmt::format("sd must be finite and > 0; got {}", sd));
}

// The smallest n in least..most with enough(n), which stays true once it is.
template <typename Enough>
int64_t smallest_size(const char* what, int64_t least, int64_t most, const Enough& enough) {
  int64_t high = least;
  while (!enough(high)) {
    if (high >= most)
      throw UsageError(fmt::format("more than {} {} would be needed; the effect is too small", most, what));
    high = std::min(most, 2 * high);
  }
  int64_t low = least - 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

double paired_t_power(double effect, double sd, int64_t pairs, double alpha, Tail tail) {
  require_finite("effect", effect);
  require_sd(sd);
  require_open_unit("alpha", alpha);
  if (pairs < 2) throw UsageError(fmt::format("pairs must be 2 or more; got {}", pairs));
  const double degrees = static_cast<double>(pairs - 1);
  const double shift = effect / sd * std::sqrt(static_cast<double>(pairs));
  const double critical = student_t_upper_quantile(tail == Tail::kTwoSided ? alpha / 2 : alpha, degrees);
  if (critical < 0) throw UsageError(fmt::format("alpha must be at most 0.5 for a one-sided test; got {}", alpha));
  double power = 0;
  if (tail != Tail::kLess) power += noncentral_t_upper_tail(critical, degrees, shift);
  if (tail != Tail::kGreater) power += noncentral_t_upper_tail(critical, degrees, -shift);
  return std::min(1.0, power);
}

int64_t paired_t_required_pairs(double effect, double sd, double power, double alpha, Tail tail) {
  require_open_unit("power", power);
  require_finite("effect", effect);
  const bool right_way = tail == Tail::kTwoSided ? effect != 0 : tail == Tail::kGreater ? effect > 0 : effect < 0;
  if (!right_way) throw UsageError(fmt::format("effect must differ from 0 in the tested direction; got {}", effect));
  return smallest_size("pairs", 2, kMostPairs,
                       [&](int64_t pairs) { return paired_t_power(effect, sd, pairs, alpha, tail) >= power; });
}

double paired_t_detectable_effect(double sd, int64_t pairs, double power, double alpha, Tail tail) {
  require_open_unit("power", power);
  require_sd(sd);
  const double sign = tail == Tail::kLess ? -1 : 1;
  const auto reaches = [&](double effect) { return paired_t_power(sign * effect, sd, pairs, alpha, tail) >= power; };
  double low = 0, high = sd / std::sqrt(static_cast<double>(std::max<int64_t>(pairs, 1)));
  if (reaches(low)) return 0;  // power at most alpha: nothing needs to be there
  while (!reaches(high)) high *= 2;
  while (high - low > 1e-12 * high) {
    const double middle = low + (high - low) / 2;
    (reaches(middle) ? high : low) = middle;
  }
  return high;
}

double two_proportion_power(double first, double second, int64_t trials_each, double alpha, Tail tail) {
  require_open_unit("first", first);
  require_open_unit("second", second);
  require_open_unit("alpha", alpha);
  if (trials_each < 1) throw UsageError(fmt::format("trials_each must be 1 or more; got {}", trials_each));
  const double pooled = (first + second) / 2;
  const double sd_null = std::sqrt(2 * pooled * (1 - pooled));
  const double sd_true = std::sqrt(first * (1 - first) + second * (1 - second));
  const double shift = (first - second) * std::sqrt(static_cast<double>(trials_each)) / sd_true;
  const double critical = normal_quantile(tail == Tail::kTwoSided ? alpha / 2 : alpha) * sd_null / sd_true;  // negative
  double power = 0;
  if (tail != Tail::kLess) power += normal_cdf(critical + shift);
  if (tail != Tail::kGreater) power += normal_cdf(critical - shift);
  return std::min(1.0, power);
}

int64_t two_proportion_required_trials(double first, double second, double power, double alpha, Tail tail) {
  require_open_unit("power", power);
  const bool right_way = tail == Tail::kTwoSided  ? first != second
                         : tail == Tail::kGreater ? first > second
                                                  : first < second;
  if (!right_way) {
    throw UsageError(fmt::format("the proportions must differ in the tested direction; got {} and {}", first, second));
  }
  return smallest_size("trials", 1, kMostTrials, [&](int64_t trials) {
    return two_proportion_power(first, second, trials, alpha, tail) >= power;
  });
}

int64_t mcnemar_required_pairs(int64_t only_first, int64_t only_second, int64_t pairs, double power, double alpha) {
  require_open_unit("power", power);
  require_open_unit("alpha", alpha);
  if (only_first < 0 || only_second < 0 || only_first + only_second > pairs || only_first == only_second)
    throw UsageError(fmt::format("two counts that differ, of no more than the pairs; got {} and {} of {}", only_first,
                                 only_second, pairs));
  const double first = static_cast<double>(only_first) / static_cast<double>(pairs),
               second = static_cast<double>(only_second) / static_cast<double>(pairs);
  const double changed = first + second, difference = std::abs(first - second);
  const double spread = std::sqrt(std::max(0.0, changed - difference * difference));
  const double root = normal_quantile(1 - alpha / 2) * std::sqrt(changed) + normal_quantile(power) * spread;
  auto least = static_cast<int64_t>(std::ceil(root * root / (difference * difference)));
  const auto expected = [&](double share, int64_t n) { return std::llround(share * static_cast<double>(n)); };
  while (mcnemar_exact_test(expected(first, least), expected(second, least)) >= alpha) least += 1 + least / 100;
  return least;
}

}  // namespace faultline
