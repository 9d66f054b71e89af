// The few distributions our intervals and tests rest on. A small tail is never computed as one minus a large
// one, so that a p-value of 1e-30 is as accurate as one of 0.3; and binomial terms use Loader's deviance form ("Fast
// and accurate computation of binomial probabilities", 2000), which keeps its digits at a million trials where
// differences of log-gamma do not. Arguments outside the domain are a UsageError.
#pragma once

#include <cstdint>

namespace faultline {

double normal_cdf(double x);
double normal_quantile(double probability);  // Wichura's AS 241, in (0, 1)

double beta_term(double a, double b, double x);  // x^a (1-x)^b / B(a, b), x in (0, 1)

// Regularised incomplete beta function I_x(a, b), and its complement.
struct BetaTails {
  double lower;
  double upper;
};
BetaTails beta_tails(double a, double b, double x);
double incomplete_beta(double a, double b, double x);

// The x with I_x(a, b) = probability (or 1 - I_x = probability), and 1 - x, both to full relative accuracy.
struct BetaRoot {
  double x;
  double one_minus_x;
};
BetaRoot beta_root_lower(double a, double b, double probability);
BetaRoot beta_root_upper(double a, double b, double probability);

double student_t_upper_tail(double t, double degrees);                   // P(T > t)
double student_t_upper_quantile(double tail, double degrees);            // the t with P(T > t) = tail
double noncentral_t_upper_tail(double t, double degrees, double shift);  // P(T > t), t >= 0; Lenth's AS 243, by tails

double binomial_pmf(int64_t successes, int64_t trials, double probability);
double binomial_upper_tail(int64_t successes, int64_t trials, double probability);  // P(X >= successes)
double binomial_lower_tail(int64_t successes, int64_t trials, double probability);  // P(X <= successes)

// P(X = white) for `drawn` balls from an urn of `white_total` + `black_total`.
double hypergeometric_pmf(int64_t white, int64_t white_total, int64_t black_total, int64_t drawn);

}  // namespace faultline
