// Intervals: Wilson for a glance at one run, Clopper-Pearson where a bound is claimed, Student's t for means over
// seeds, the bootstrap for anything else. Resampling draws from a counter (mix64), so a replicate's indices depend on
// its number and the seed, not on how many were drawn before.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/stats/distributions.h"
#include "base/stats/stats.h"
#include "base/text.h"

namespace faultline {
namespace {

void check_confidence(double confidence) {
  if (confidence > 0 && confidence < 1) return;
  throw UsageError(fmt::format("confidence must be in (0, 1); got {}", confidence));
}

void check_proportion(int64_t successes, int64_t trials, double confidence) {
  if (trials < 1) throw UsageError(fmt::format("trials must be 1 or more; got {}", trials));
  if (successes < 0 || successes > trials) {
    throw UsageError(fmt::format("successes must be in 0..{}; got {}", trials, successes));
  }
  check_confidence(confidence);
}

void check_values(std::span<const double> values, size_t least) {
  if (values.size() < least) {
    throw UsageError(fmt::format("values must be {} or more; got {}", least, values.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) throw UsageError(fmt::format("values[{}] must be finite; got {}", i, values[i]));
  }
}

double upper_bound(int64_t successes, int64_t trials, double tail) {
  if (successes == trials) return 1;
  return beta_root_upper(static_cast<double>(successes + 1), static_cast<double>(trials - successes), tail).x;
}

double lower_bound(int64_t successes, int64_t trials, double tail) {
  if (successes == 0) return 0;
  return beta_root_lower(static_cast<double>(successes), static_cast<double>(trials - successes + 1), tail).x;
}

double evaluate(const Statistic& statistic, std::span<const double> values) {
  const double value = statistic(values);
  if (!std::isfinite(value)) throw UsageError(fmt::format("the statistic of a resample must be finite; got {}", value));
  return value;
}

std::vector<double> resampled(std::span<const double> values, const Statistic& statistic,
                              const BootstrapOptions& options) {
  std::vector<double> estimates(static_cast<size_t>(options.resamples)), sample(values.size());
  for (size_t replicate = 0; replicate < estimates.size(); ++replicate) {
    const uint64_t key = mix64(options.seed, replicate);
    for (size_t i = 0; i < sample.size(); ++i) {
      // 53 random bits: the bias of an index is below size / 2^53.
      const double uniform = static_cast<double>(mix64(key, i) >> 11) * 0x1p-53;
      sample[i] = values[static_cast<size_t>(uniform * static_cast<double>(values.size()))];
    }
    estimates[replicate] = evaluate(statistic, sample);
  }
  std::ranges::sort(estimates);
  return estimates;
}

// Linear between order statistics, like numpy's default.
double sorted_quantile(std::span<const double> sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  if (below + 1 >= sorted.size()) return sorted.back();
  return std::lerp(sorted[below], sorted[below + 1], position - static_cast<double>(below));
}

// Acceleration from the jackknife (Efron 1987): skewness of the leave-one-out estimates, over 6.
double acceleration(std::span<const double> values, const Statistic& statistic) {
  std::vector<double> left_out(values.begin() + 1, values.end()), estimates(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) left_out[i - 1] = values[i - 1];
    estimates[i] = evaluate(statistic, left_out);
  }
  const double mean = mean_of(estimates);
  double squares = 0, cubes = 0;
  for (const double estimate : estimates) {
    squares += (mean - estimate) * (mean - estimate);
    cubes += (mean - estimate) * (mean - estimate) * (mean - estimate);
  }
  return squares > 0 ? cubes / (6 * std::pow(squares, 1.5)) : 0;
}

}  // namespace

Interval wilson_interval(int64_t successes, int64_t trials, double confidence) {
  check_proportion(successes, trials, confidence);
  const double z = -normal_quantile((1 - confidence) / 2);
  const auto n = static_cast<double>(trials);
  const double rate = static_cast<double>(successes) / n, scale = 1 + z * z / n;
  const double centre = (rate + z * z / (2 * n)) / scale;
  const double half = z / scale * std::sqrt(rate * (1 - rate) / n + z * z / (4 * n * n));
  return {successes == 0 ? 0 : std::max(0.0, centre - half), successes == trials ? 1 : std::min(1.0, centre + half)};
}

Interval clopper_pearson_interval(int64_t successes, int64_t trials, double confidence) {
  check_proportion(successes, trials, confidence);
  const double tail = (1 - confidence) / 2;
  return {lower_bound(successes, trials, tail), upper_bound(successes, trials, tail)};
}

double clopper_pearson_upper(int64_t successes, int64_t trials, double confidence) {
  check_proportion(successes, trials, confidence);
  return upper_bound(successes, trials, 1 - confidence);
}

double clopper_pearson_lower(int64_t successes, int64_t trials, double confidence) {
  check_proportion(successes, trials, confidence);
  return lower_bound(successes, trials, 1 - confidence);
}

double upper_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double mean_of(std::span<const double> values) {
  check_values(values, 1);
  double mean = 0, count = 0;
  for (const double value : values) mean += (value - mean) / ++count;  // cannot overflow, unlike the sum
  return mean;
}

double sd_of(std::span<const double> values) {
  check_values(values, 2);
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

MeanInterval t_interval(std::span<const double> values, double confidence) {
  check_confidence(confidence);
  check_values(values, 2);
  const double mean = mean_of(values), sd = sd_of(values), count = static_cast<double>(values.size());
  const double half = student_t_upper_quantile((1 - confidence) / 2, count - 1) * sd / std::sqrt(count);
  return {mean, mean - half, mean + half, sd, static_cast<int64_t>(values.size())};
}

std::vector<double> paired_differences(std::span<const double> treated, std::span<const double> control) {
  if (treated.size() != control.size()) {
    throw UsageError(
        fmt::format("paired samples must be of equal size; got {} and {}", treated.size(), control.size()));
  }
  check_values(treated, 1);
  check_values(control, 1);
  std::vector<double> differences(treated.size());
  for (size_t i = 0; i < differences.size(); ++i) differences[i] = treated[i] - control[i];
  return differences;
}

MeanInterval paired_t_interval(std::span<const double> treated, std::span<const double> control, double confidence) {
  return t_interval(paired_differences(treated, control), confidence);
}

Interval bootstrap_interval(std::span<const double> values, const Statistic& statistic,
                            const BootstrapOptions& options) {
  check_confidence(options.confidence);
  check_values(values, 2);
  if (options.resamples < 100)
    throw UsageError(fmt::format("resamples must be 100 or more; got {}", options.resamples));
  const std::vector<double> estimates = resampled(values, statistic, options);
  const double tail = (1 - options.confidence) / 2;
  const Interval percentile = {sorted_quantile(estimates, tail), sorted_quantile(estimates, 1 - tail)};
  if (options.method == BootstrapMethod::kPercentile) return percentile;

  const auto [first, last] = std::ranges::equal_range(estimates, evaluate(statistic, values));
  const double below =
      (static_cast<double>(first - estimates.begin()) + static_cast<double>(last - estimates.begin())) /
      (2 * static_cast<double>(estimates.size()));
  if (below <= 0 || below >= 1 || estimates.front() == estimates.back()) return percentile;
  const double bias = normal_quantile(below), skew = acceleration(values, statistic);
  const auto corrected = [&](double z) {
    const double shifted = bias + z, slope = 1 - skew * shifted;
    return slope > 0 ? normal_cdf(bias + shifted / slope) : shifted > 0 ? 1.0 : 0.0;
  };
  return {sorted_quantile(estimates, corrected(normal_quantile(tail))),
          sorted_quantile(estimates, corrected(-normal_quantile(tail)))};
}

}  // namespace faultline
