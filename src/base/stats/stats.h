// Intervals, tests and sample sizes for experiments whose unit is a seed. The decision that shaped it: exact methods
// wherever they can be afforded (few seeds, many questions), and every result says whether it is exact, because "clean"
// from 0 of 4 still allows a rate of 53 % and five seeds cannot reach p = 0.05 whatever happens. Impossible input is a
// UsageError; nothing here returns NaN. Results depend on nothing but the arguments, the seed included.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace faultline {

inline constexpr double kAlpha = 0.05;  // the level of every test in a report

struct Interval {
  double low;
  double high;
};

enum class Tail { kTwoSided, kGreater, kLess };  // the alternative hypothesis

// ---- intervals of a proportion: k of n (stats_intervals.cpp)
Interval wilson_interval(int64_t successes, int64_t trials, double confidence = 0.95);
Interval clopper_pearson_interval(int64_t successes, int64_t trials, double confidence = 0.95);
// One-sided exact bounds: the rate is at most / at least this, with the confidence given.
double clopper_pearson_upper(int64_t successes, int64_t trials, double confidence = 0.95);
double clopper_pearson_lower(int64_t successes, int64_t trials, double confidence = 0.95);

// ---- intervals of a mean (stats_intervals.cpp)
struct MeanInterval {
  double mean;
  double low;
  double high;
  double sd;  // unbiased, of the values (of the differences, where paired)
  int64_t count;
};
double mean_of(std::span<const double> values);
// One of the values: of an even number of them the larger of the middle two; 0 for none.
double upper_median(std::vector<double> values);
double sd_of(std::span<const double> values);  // unbiased; at least two values
MeanInterval t_interval(std::span<const double> values, double confidence = 0.95);
MeanInterval paired_t_interval(std::span<const double> treated, std::span<const double> control,
                               double confidence = 0.95);
std::vector<double> paired_differences(std::span<const double> treated, std::span<const double> control);

enum class BootstrapMethod { kPercentile, kBca };
struct BootstrapOptions {
  double confidence = 0.95;
  int64_t resamples = 10'000;
  uint64_t seed = 0;
  BootstrapMethod method = BootstrapMethod::kBca;  // falls back to percentile where all resamples agree
};
using Statistic = std::function<double(std::span<const double>)>;
Interval bootstrap_interval(std::span<const double> values, const Statistic& statistic,
                            const BootstrapOptions& options = {});

// ---- permutation tests (stats_permutation.cpp)
struct MonteCarlo {
  int64_t samples = 100'000;  // only where enumeration is too long
  uint64_t seed = 0;
};
struct PermutationResult {
  double p_value;       // never 0: the observed arrangement counts
  double observed;      // mean difference
  bool exact;           // all arrangements were counted; else p = (hits + 1) / (samples + 1)
  double arrangements;  // counted or sampled
};
// Are paired differences symmetric about 0? Exact up to kMaxExactPairs.
inline constexpr int64_t kMaxExactPairs = 40;
PermutationResult sign_flip_test(std::span<const double> differences, Tail tail = Tail::kTwoSided,
                                 const MonteCarlo& monte_carlo = {});
// Is mean(a) - mean(b) zero under exchange of labels? Two-sided counts |difference|. Exact up to 5 million splits.
PermutationResult two_sample_permutation_test(std::span<const double> a, std::span<const double> b,
                                              Tail tail = Tail::kTwoSided, const MonteCarlo& monte_carlo = {});
// The smallest p an exact sign-flip test of n pairs can give: 2^(1-n), one-sided 2^-n.
double smallest_sign_flip_p(int64_t pairs, Tail tail = Tail::kTwoSided);
// The fewest pairs whose smallest p passes Holm's first step over that many comparisons.
int64_t fewest_sign_flip_pairs(double alpha, int64_t comparisons = 1, Tail tail = Tail::kTwoSided);
// Do the values rise or fall in the order they come? Kendall's test, two-sided, exact; tied values count for neither.
double trend_p(std::span<const double> values);

// ---- tests of counts and of distributions (stats_counts.cpp)
struct CountTable {  // two groups, two outcomes
  int64_t a_yes, a_no, b_yes, b_no;
};
// Two-sided: all tables with the same margins that are no more probable. kGreater: group a says yes more often.
double fisher_exact_test(const CountTable& table, Tail tail = Tail::kTwoSided);
// Paired outcomes: pairs where only the first succeeded, pairs where only the second did. No discordant pair: p = 1.
double mcnemar_exact_test(int64_t only_first, int64_t only_second, Tail tail = Tail::kTwoSided);
// Holm's step-down adjustment, in the order given.
std::vector<double> holm_adjust(std::span<const double> p_values);

struct KsResult {
  double statistic;
  double p_value;
  bool exact;  // else asymptotic, about three digits
};
// One sample against a continuous distribution; exact up to kMaxExactKs values, and beyond where p is small.
inline constexpr int64_t kMaxExactKs = 2000;
KsResult ks_test(std::span<const double> values, const std::function<double(double)>& cdf);
// Two samples; exact (for continuous data) up to 10 million lattice points. Ties make it conservative.
KsResult ks_test(std::span<const double> a, std::span<const double> b);

// ---- power and sample size (stats_power.cpp)
// Paired t test: effect and sd in the same unit (sd of the differences). kGreater: the effect is positive.
double paired_t_power(double effect, double sd, int64_t pairs, double alpha = 0.05, Tail tail = Tail::kTwoSided);
int64_t paired_t_required_pairs(double effect, double sd, double power = 0.8, double alpha = 0.05,
                                Tail tail = Tail::kTwoSided);
// The smallest effect found with that power: what "no effect" bounds.
double paired_t_detectable_effect(double sd, int64_t pairs, double power = 0.8, double alpha = 0.05,
                                  Tail tail = Tail::kTwoSided);
// Two independent proportions, n trials each; z test, variance pooled under the null. kGreater: first > second.
double two_proportion_power(double first, double second, int64_t trials_each, double alpha = 0.05,
                            Tail tail = Tail::kTwoSided);
int64_t two_proportion_required_trials(double first, double second, double power = 0.8, double alpha = 0.05,
                                       Tail tail = Tail::kTwoSided);
// So many pairs show the difference seen in `pairs` of them, of which only the first succeeded in some and only the
// second in others: with this power by the normal approximation (Connor 1987), and so that McNemar's exact test of the
// counts to be expected passes.
int64_t mcnemar_required_pairs(int64_t only_first, int64_t only_second, int64_t pairs, double power = 0.8,
                               double alpha = 0.05);

}  // namespace faultline
