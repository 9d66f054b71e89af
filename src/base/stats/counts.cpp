// Tests of counts (Fisher, McNemar), Holm's adjustment, and Kolmogorov-Smirnov. All are exact for the sizes we meet;
// the KS tails are sums of positive terms only, so small p-values keep their digits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/stats/distributions.h"
#include "base/stats/stats.h"

namespace faultline {
namespace {

constexpr int64_t kMaxCount = 100'000'000;
constexpr int64_t kMaxLattice = 10'000'000;

void check_count(const char* name, int64_t count) {
  if (count >= 0 && count <= kMaxCount) return;
  throw UsageError(fmt::format("{} must be in 0..{}; got {}", name, kMaxCount, count));
}

std::vector<double> sorted_sample(std::span<const double> values, const char* name) {
  if (values.empty()) throw UsageError(fmt::format("{} must have 1 value or more; got 0", name));
  std::vector<double> sorted(values.begin(), values.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (!std::isfinite(sorted[i])) throw UsageError(fmt::format("{}[{}] must be finite; got {}", name, i, sorted[i]));
  }
  std::ranges::sort(sorted);
  return sorted;
}

// P(D > x / sqrt(n)) for n to infinity.
double kolmogorov_tail(double x) {
  if (x < 0.2) return 1;  // the tail differs from 1 by less than 1e-12
  double sum = 0;
  for (int k = 1; k < 100; ++k) sum += (k % 2 == 1 ? 2 : -2) * std::exp(-2.0 * k * k * x * x);
  return std::clamp(sum, 0.0, 1.0);
}

// P(D+ >= d), one-sided and exact (Smirnov 1944; Birnbaum and Tingey 1951).
double smirnov_tail(int64_t count, double d) {
  const auto n = static_cast<double>(count);
  double sum = 0;
  for (int64_t j = 0; j <= static_cast<int64_t>(n * (1 - d)); ++j) {
    const double edge = d + static_cast<double>(j) / n;
    if (edge < 1) sum += d / edge * binomial_pmf(j, count, edge);
  }
  return std::min(1.0, sum);
}

using Matrix = std::vector<double>;  // (m, m), row by row

void multiply_into(Matrix& product, const Matrix& a, const Matrix& b, size_t m) {
  std::ranges::fill(product, 0.0);
  for (size_t i = 0; i < m; ++i) {
    for (size_t k = 0; k < m; ++k) {
      const double factor = a[i * m + k];
      for (size_t j = 0; j < m; ++j) product[i * m + j] += factor * b[k * m + j];
    }
  }
}

Matrix transition_matrix(size_t m, double h) {
  Matrix matrix(m * m, 0.0);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < std::min(m, i + 2); ++j) matrix[i * m + j] = 1;
  }
  for (size_t i = 0; i < m; ++i) {
    matrix[i * m] -= std::pow(h, static_cast<double>(i + 1));
    matrix[(m - 1) * m + i] -= std::pow(h, static_cast<double>(m - i));
  }
  if (2 * h > 1) matrix[(m - 1) * m] += std::pow(2 * h - 1, static_cast<double>(m));
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < std::min(m, i + 2); ++j) {
      for (size_t g = 1; g <= i + 1 - j; ++g) matrix[i * m + j] /= static_cast<double>(g);
    }
  }
  return matrix;
}

// P(D < d), exact: Marsaglia, Tsang and Wang, "Evaluating Kolmogorov's distribution" (2003).
double kolmogorov_cdf(int64_t count, double d) {
  const double scaled = static_cast<double>(count) * d;
  if (scaled <= 0.5) return 0;  // the least possible statistic is 1 / (2 n)
  const auto k = static_cast<size_t>(scaled) + 1;
  const size_t m = 2 * k - 1;
  Matrix base = transition_matrix(m, static_cast<double>(k) - scaled), power(m * m, 0.0), product(m * m);
  for (size_t i = 0; i < m; ++i) power[i * m + i] = 1;
  double log_scale = 0, base_log_scale = 0;
  for (int64_t bits = count; bits > 0; bits /= 2) {
    if (bits % 2 == 1) {
      multiply_into(product, power, base, m);
      power.swap(product);
      log_scale += base_log_scale;
    }
    multiply_into(product, base, base, m);
    base.swap(product);
    const double centre = base[(k - 1) * m + k - 1];
    for (double& entry : base) entry /= centre;
    base_log_scale = 2 * base_log_scale + std::log(centre);
  }
  for (int64_t i = 1; i <= count; ++i) log_scale += std::log(static_cast<double>(i) / static_cast<double>(count));
  return power[(k - 1) * m + k - 1] * std::exp(log_scale);  // times n! / n^n
}

// P(some point of a random lattice path from (0,0) to (n,m) has |i*m - j*n| >= limit), by backward recursion.
double lattice_tail(int64_t n, int64_t m, int64_t limit) {
  std::vector<double> hit(static_cast<size_t>(m) + 1, 0.0);
  for (int64_t i = n; i >= 0; --i) {
    for (int64_t j = m; j >= 0; --j) {
      double& here = hit[static_cast<size_t>(j)];  // holds (i+1, j) until it is overwritten
      const double steps = static_cast<double>((n - i) + (m - j));
      const double up = j < m ? hit[static_cast<size_t>(j) + 1] * static_cast<double>(m - j) / steps : 0.0;
      const double right = i < n ? here * static_cast<double>(n - i) / steps : 0.0;
      here = std::abs(i * m - j * n) >= limit ? 1.0 : up + right;
    }
  }
  return hit[0];
}

}  // namespace

double fisher_exact_test(const CountTable& table, Tail tail) {
  check_count("a_yes", table.a_yes);
  check_count("a_no", table.a_no);
  check_count("b_yes", table.b_yes);
  check_count("b_no", table.b_no);
  const int64_t yes = table.a_yes + table.b_yes, no = table.a_no + table.b_no, in_a = table.a_yes + table.a_no;
  if (in_a == 0 || in_a == yes + no) throw UsageError("each group of the table must have 1 trial or more; one has 0");
  const int64_t first = std::max<int64_t>(0, in_a - no), last = std::min(in_a, yes);
  // Tables as probable as the observed one may differ in the last digits; the tolerance is R's.
  const double as_probable = hypergeometric_pmf(table.a_yes, yes, no, in_a) * (1 + 1e-7);
  double p = 0;
  for (int64_t a_yes = first; a_yes <= last; ++a_yes) {
    const double probability = hypergeometric_pmf(a_yes, yes, no, in_a);
    const bool extreme = tail == Tail::kGreater ? a_yes >= table.a_yes
                         : tail == Tail::kLess  ? a_yes <= table.a_yes
                                                : probability <= as_probable;
    if (extreme) p += probability;
  }
  return std::min(1.0, p);
}

double mcnemar_exact_test(int64_t only_first, int64_t only_second, Tail tail) {
  check_count("only_first", only_first);
  check_count("only_second", only_second);
  const int64_t discordant = only_first + only_second;
  if (tail == Tail::kGreater) return binomial_upper_tail(only_first, discordant, 0.5);
  if (tail == Tail::kLess) return binomial_lower_tail(only_first, discordant, 0.5);
  return std::min(1.0, 2 * binomial_lower_tail(std::min(only_first, only_second), discordant, 0.5));
}

std::vector<double> holm_adjust(std::span<const double> p_values) {
  for (size_t i = 0; i < p_values.size(); ++i) {
    if (!(p_values[i] >= 0 && p_values[i] <= 1)) {
      throw UsageError(fmt::format("p_values[{}] must be in [0, 1]; got {}", i, p_values[i]));
    }
  }
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return p_values[i]; });
  std::vector<double> adjusted(p_values.size());
  double running = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    running = std::max(running, std::min(1.0, static_cast<double>(order.size() - rank) * p_values[order[rank]]));
    adjusted[order[rank]] = running;
  }
  return adjusted;
}

KsResult ks_test(std::span<const double> values, const std::function<double(double)>& cdf) {
  const std::vector<double> sorted = sorted_sample(values, "values");
  const auto n = static_cast<double>(sorted.size());
  double d = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double expected = cdf(sorted[i]);
    if (!(expected >= 0 && expected <= 1)) {
      throw UsageError(fmt::format("the distribution function must be in [0, 1]; at {} it is {}", sorted[i], expected));
    }
    d = std::max({d, expected - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - expected});
  }
  const auto count = static_cast<int64_t>(sorted.size());
  // Beyond n d^2 = 4 both sides cannot be exceeded together but with probability below 1e-13.
  if (n * d * d >= 4 || d >= 0.5) return {d, std::min(1.0, 2 * smirnov_tail(count, d)), true};
  if (count <= kMaxExactKs) return {d, std::clamp(1 - kolmogorov_cdf(count, d), 0.0, 1.0), true};
  return {d, kolmogorov_tail(d * std::sqrt(n) + 1 / (6 * std::sqrt(n))), false};
}

KsResult ks_test(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> x = sorted_sample(a, "a"), y = sorted_sample(b, "b");
  const auto n = static_cast<int64_t>(x.size()), m = static_cast<int64_t>(y.size());
  FL_ASSERT(n > 0 && m > 0);          // an empty sample was refused
  int64_t i = 0, j = 0, largest = 0;  // in units of 1 / (n m)
  while (i < n && j < m) {
    const double value = std::min(x[static_cast<size_t>(i)], y[static_cast<size_t>(j)]);
    while (i < n && x[static_cast<size_t>(i)] == value) ++i;
    while (j < m && y[static_cast<size_t>(j)] == value) ++j;
    largest = std::max(largest, std::abs(i * m - j * n));
  }
  const double d = static_cast<double>(largest) / (static_cast<double>(n) * static_cast<double>(m));
  if (n <= kMaxLattice / m) return {d, lattice_tail(n, m, largest), true};
  const double effective = static_cast<double>(n) / static_cast<double>(n + m) * static_cast<double>(m);
  return {d, kolmogorov_tail(d * std::sqrt(effective)), false};
}

}  // namespace faultline
