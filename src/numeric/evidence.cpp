#include "numeric/evidence.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "numeric/lower.h"
#include "numeric/resolution.h"

namespace faultline {
namespace {

constexpr double kStandardErrors = 6.2;  // two-sided 5.6e-10
constexpr double kFewSamples = 30;

int eligible_bits(const Rule& rule, Dtype dtype) {
  const int width = dtype_width(dtype), mantissa = dtype_mantissa_bits(dtype);
  if (rule.what.bit || rule.what.field == BitField::kSign) return 1;
  if (rule.what.field == BitField::kExponent) return width - 1 - mantissa;
  return rule.what.field == BitField::kMantissa ? mantissa : width;
}

// Some faults may rightly change nothing: flips too rare to be expected in this many elements.
bool may_stay_silent(const Rule& rule, Dtype dtype, const LedgerNumbers& numbers) {
  if (rule.what.kind == FaultKind::kBitflip && rule.what.count == 0)
    return numbers.selected * eligible_bits(rule, dtype) * rule.what.strength < 25;
  if (rule.what.kind == FaultKind::kSpike) return numbers.selected * rule.what.strength < 25;
  return numbers.elements == 0;
}

// Note [Subnormal data]
// Subnormal numbers lie one fixed gap apart, so their relative error after rounding may be anything from 0 (the fault
// is lost in the rounding) to well above the strength. The ledger does not count them; it knows the data's rms. The
// density of |x| is taken to be nowhere above 4 / rms (Gaussian data: 0.8 / rms, Laplace data: 1.4 / rms), so at most
// 4 * smallest normal / rms of the elements are subnormal: nothing to speak of in bf16 and fp32, 0.02 % of N(0,1) in
// fp16, all of N(0,1e-4^2). Data of two scales, most of it subnormal, break the assumption.
double subnormal_share(const Rule& rule, Dtype dtype, const LedgerNumbers& n) {
  const double smallest_normal = dtype == Dtype::kFloat16 ? 0x1p-14 : dtype == Dtype::kFloat64 ? 0x1p-1022 : 0x1p-126;
  if (!n.rms_value) return 0;
  // Squares of values below 2^-75 underflow in fp32; the largest error says how large such values may be.
  const double scale = *n.rms_value > 0 ? *n.rms_value : n.max_abs_error / (kStandardErrors * rule.what.strength);
  return scale > 4 * smallest_normal ? 4 * smallest_normal / scale : 1;
}

// Upper bounds on the mean of r^2 and on its variance about s^2, r the relative error of a subnormal number.
struct SubnormalEffect {
  double squared = 0;
  double variance = 0;
};

// x is k gaps and the fault shifts it by t = s*k gaps (times a normal deviate). To nearest, a shift is at most doubled
// (r^2 = 4 s^2 just above half a gap); over deviates the mean of r^2 peaks at t = 0.42 with 1.334 s^2, that of r^4 at t
// = 0.28 with 12.1 s^4. Stochastic rounding adds an error d, |d| < 1, of mean 0 whatever the shift n, and E d^2 <= a =
// min(E|n|, 1/4): E (n+d)^2 = t^2 + a, and E (n+d)^4 <= 3 t^4 + 10 t^2 + a.
SubnormalEffect subnormal_effect(const Rule& rule, Dtype dtype, bool all_subnormal) {
  const double s = rule.what.strength, s2 = s * s;
  const bool gain = rule.what.kind == FaultKind::kGain, narrow = dtype == Dtype::kBFloat16 || dtype == Dtype::kFloat16;
  if (!rule.stochastic_rounding || !narrow)
    return gain ? SubnormalEffect{4 * s2, 9 * s2 * s2} : SubnormalEffect{1.34 * s2, 12.5 * s2 * s2};
  // Where all data are subnormal, all may be one gap large; otherwise they are spread evenly.
  const int largest = all_subnormal ? 1 : (1 << dtype_mantissa_bits(dtype)) - 1;
  SubnormalEffect effect;
  for (int k = 1; k <= largest; ++k) {
    const double k2 = double(k) * k, rounding = std::min(s * k, 0.25);
    effect.squared += (s2 + rounding / k2) / largest;
    effect.variance += (3 * s2 * s2 + 10 * s2 / k2 + rounding / (k2 * k2)) / largest;
  }
  return effect;
}

}  // namespace

LedgerNumbers read_ledger(const double* row) {
  LedgerNumbers n;
  n.calls = row[kCalls], n.active_calls = row[kActiveCalls], n.elements = row[kElements], n.selected = row[kSelected];
  n.changed = row[kChanged], n.nonzero = row[kNonzero], n.zeroed = row[kZeroed], n.nonfinite = row[kNonfinite];
  n.saturated = row[kSaturated], n.sampled = row[kSampled], n.max_abs_error = row[kMaxAbsError];
  if (n.elements > 0) {
    n.mean_abs_error = row[kSumAbsError] / n.elements;
    n.rms_error = std::sqrt(row[kSumSquaredError] / n.elements);
  }
  if (n.sampled > 0) n.relative_rms = std::sqrt(row[kSumSquaredRelative] / n.sampled);
  if (row[kSumSquaredError] > 0 && std::isfinite(row[kSumSquaredError]))
    n.sqnr_db = 10 * std::log10(row[kSumSquaredValue] / row[kSumSquaredError]);
  if (n.nonzero > 0) {
    n.survival = (n.nonzero - n.zeroed) / n.nonzero;
    n.rms_value = std::sqrt(row[kSumSquaredValue] / n.nonzero);
  }
  return n;
}

nlohmann::ordered_json to_json(const LedgerNumbers& n) {
  nlohmann::ordered_json json = {{"calls", n.calls},         {"active_calls", n.active_calls},
                                 {"elements", n.elements},   {"selected", n.selected},
                                 {"changed", n.changed},     {"nonzero", n.nonzero},
                                 {"zeroed", n.zeroed},       {"nonfinite", n.nonfinite},
                                 {"saturated", n.saturated}, {"mean_abs_error", n.mean_abs_error},
                                 {"rms_error", n.rms_error}, {"max_abs_error", n.max_abs_error},
                                 {"sampled", n.sampled},     {"survival", n.survival}};
  json["relative_rms"] = n.relative_rms ? nlohmann::ordered_json(*n.relative_rms) : nlohmann::ordered_json();
  json["sqnr_db"] = n.sqnr_db ? nlohmann::ordered_json(*n.sqnr_db) : nlohmann::ordered_json();
  return json;
}

std::optional<StrengthBand> expected_strength(const Rule& rule, Dtype dtype, const LedgerNumbers& n) {
  const auto visibility = predict_visibility(rule, dtype);
  if (!visibility || n.sampled < kFewSamples) return {};
  const double share = subnormal_share(rule, dtype, n);
  const SubnormalEffect subnormal = subnormal_effect(rule, dtype, share == 1);
  const auto mixed = [&](double normal, double other) { return (1 - share) * normal + share * other; };
  const double low = mixed(visibility->relative_rms_low * visibility->relative_rms_low, 0);
  const double high = mixed(visibility->relative_rms_high * visibility->relative_rms_high, subnormal.squared);
  const double variance = mixed(visibility->square_spread * visibility->square_spread, subnormal.variance);
  // A mean of n squares strays by their standard deviation over sqrt(n), downwards by that of normal numbers alone
  // (a subnormal's square is at least the 0 it is counted as); rounding of the fp32 sums by far less than 1e-5.
  const double slack = kStandardErrors / std::sqrt(n.sampled), normal_slack = slack * visibility->square_spread;
  return StrengthBand{visibility->relative_rms, std::sqrt(std::max(0.0, low - normal_slack)) * (1 - 1e-5),
                      std::sqrt(high + slack * std::sqrt(variance)) * (1 + 1e-5)};
}

std::vector<std::string> missing_evidence(const Rule& rule, Dtype dtype, const LedgerNumbers& n) {
  std::vector<std::string> reasons;
  const auto complain = [&](const std::string& reason) {
    reasons.push_back(fmt::format("rule '{}': {}", rule.name, reason));
  };
  if (n.calls == 0) complain("its site was never reached");
  if (n.calls > 0 && n.active_calls == 0) complain(fmt::format("its lifetime let it act in none of {} calls", n.calls));
  if (!reasons.empty()) return reasons;
  if (rule.expect_invisible) {
    if (n.changed > 0) complain(fmt::format("it was declared invisible, but {} elements changed", n.changed));
    return reasons;
  }
  if (n.elements > 0 && n.selected == 0)
    complain("its extent selects none of the elements; raise extent.fraction or change the seed");
  if (n.selected > 0 && n.changed == 0 && !may_stay_silent(rule, dtype, n)) complain("it changed not one bit");
  if (rule.what.kind == FaultKind::kBitflip && rule.what.count > 0 && n.elements > 0 &&
      n.changed != n.active_calls * static_cast<double>(rule.what.count)) {
    complain(fmt::format("{} elements changed in {} calls where exactly {} a call were asked for", n.changed,
                         n.active_calls, rule.what.count));
  }
  const auto band = expected_strength(rule, dtype, n);
  if (band && n.relative_rms && std::isfinite(*n.relative_rms) &&
      (*n.relative_rms < band->low || *n.relative_rms > band->high)) {
    complain(fmt::format("the realised strength {:.6g} is outside [{:.6g}, {:.6g}]", *n.relative_rms, band->low,
                         band->high));
  }
  return reasons;
}

}  // namespace faultline
