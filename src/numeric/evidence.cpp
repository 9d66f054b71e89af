#include "numeric/evidence.h"

#include <fmt/format.h>

#include <cmath>

#include "base/json.h"
#include "base/stats/distributions.h"
#include "numeric/lower.h"
#include "numeric/resolution.h"

namespace faultline::numeric {
namespace {

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

// Codes or scales that a fault in a format's encoding should have changed; 0: nobody can say.
double expected_strikes(const FormatArguments& format, const LedgerNumbers& n) {
  if (format.stuck) return n.nonzero > 0 ? INFINITY : 0;
  const bool codes = format.faulty == Encoded::kCodes, blocks = format.granularity == Granularity::kBlock;
  const double words = codes ? n.selected : blocks ? n.selected / format.block : 0;
  return words * format.flip_rate;
}

}  // namespace

LedgerNumbers read_ledger(const double* row) {
  LedgerNumbers n;
  n.calls = row[kCalls], n.active_calls = row[kActiveCalls], n.elements = row[kElements], n.selected = row[kSelected];
  n.changed = row[kChanged], n.nonzero = row[kNonzero], n.zeroed = row[kZeroed], n.nonfinite = row[kNonfinite];
  n.struck = row[kStruck];
  n.saturated = row[kSaturated], n.sampled = row[kSampled], n.max_abs_error = row[kMaxAbsError];
  if (n.elements > 0) {
    n.mean_abs_error = row[kSumAbsError] / n.elements;
    n.rms_error = std::sqrt(row[kSumSquaredError] / n.elements);
  }
  if (n.sampled > 0) n.relative_rms = std::sqrt(row[kSumSquaredRelative] / n.sampled);
  if (row[kSumSquaredError] > 0 && std::isfinite(row[kSumSquaredError]))
    n.sqnr_db = 10 * std::log10(row[kSumSquaredValue] / row[kSumSquaredError]);
  if (n.nonzero > 0) n.survival = (n.nonzero - n.zeroed) / n.nonzero;
  return n;
}

Json to_json(const LedgerNumbers& n) {
  Json json = {{"calls", n.calls},         {"active_calls", n.active_calls},
               {"elements", n.elements},   {"selected", n.selected},
               {"changed", n.changed},     {"nonzero", n.nonzero},
               {"zeroed", n.zeroed},       {"nonfinite", n.nonfinite},
               {"saturated", n.saturated}, {"mean_abs_error", n.mean_abs_error},
               {"rms_error", n.rms_error}, {"max_abs_error", n.max_abs_error},
               {"sampled", n.sampled},     {"survival", n.survival}};
  if (n.struck > 0) json["struck"] = n.struck;
  json["relative_rms"] = n.relative_rms ? Json(*n.relative_rms) : Json();
  json["sqnr_db"] = n.sqnr_db ? Json(*n.sqnr_db) : Json();
  return json;
}

std::optional<StrengthBand> expected_strength(const Rule& rule, Dtype dtype, double sampled,
                                              const Judgement& judgement) {
  if (sampled < kFewSamples) return {};
  const double standard_errors = -normal_quantile(judgement.false_alarm / 2);
  StrengthBand band{0, INFINITY, 0};
  const std::vector<double> own = {rule.what.strength};
  for (const double strength : judgement.strengths.empty() ? own : judgement.strengths) {
    const auto visibility = predict_visibility(rule, dtype, strength);
    if (!visibility) return {};
    // A mean of n squares strays by their standard deviation over sqrt(n); rounding of the fp32 sums by far less than
    // 1e-5.
    const double slack = standard_errors * visibility->square_spread / std::sqrt(sampled);
    const auto bound = [&](double rms, double by) { return std::sqrt(std::max(0.0, rms * rms + by)); };
    band.expected = visibility->relative_rms;
    band.low = std::min(band.low, bound(visibility->relative_rms_low, -slack) * (1 - 1e-5));
    band.high = std::max(band.high, bound(visibility->relative_rms_high, slack) * (1 + 1e-5));
  }
  return band;
}

std::optional<Complaint> strength_complaint(const Rule& rule, Dtype dtype, const LedgerNumbers& n,
                                            const Judgement& judgement, const std::string& where) {
  const auto band = expected_strength(rule, dtype, n.sampled, judgement);
  if (!band || !n.relative_rms || !std::isfinite(*n.relative_rms)) return {};
  if (*n.relative_rms >= band->low && *n.relative_rms <= band->high) return {};
  return Complaint{ComplaintCode::kStrength, rule.name, "",
                   fmt::format("rule '{}'{}: the realised strength {:.6g} is outside [{:.6g}, {:.6g}]", rule.name,
                               where, *n.relative_rms, band->low, band->high)};
}

std::vector<Complaint> missing_evidence(const Rule& rule, Dtype dtype, const LedgerNumbers& n,
                                        const Judgement& judgement) {
  using enum ComplaintCode;
  std::vector<Complaint> reasons;
  const auto complain = [&](ComplaintCode code, const std::string& reason) {
    reasons.push_back({code, rule.name, "", fmt::format("rule '{}': {}", rule.name, reason)});
  };
  if (n.calls == 0) complain(kNeverFired, "its site was never reached");
  if (n.calls > 0 && n.active_calls == 0)
    complain(kAsleep,
             fmt::format("its lifetime{} let it act in none of {} calls", rule.when ? " or its `when`" : "", n.calls));
  if (!reasons.empty()) return reasons;
  if (rule.expect_invisible) {
    if (n.changed > 0) complain(kVisible, fmt::format("it was declared invisible, but {} elements changed", n.changed));
    return reasons;
  }
  if (n.elements > 0 && n.selected == 0)
    complain(kUnselected, rule.extent.is_exact()
                              ? "its extent selects none of the elements: no tensor that it met has such rows, columns "
                                "or elements"
                              : "its extent selects none of the elements; raise extent.fraction or change the seed");
  if (n.selected > 0 && n.changed == 0 && !may_stay_silent(rule, dtype, n))
    complain(kUnchanged, "it changed not one bit");
  if (rule.what.format.faulty != Encoded::kNothing && n.struck == 0 && n.selected > 0 &&
      expected_strikes(rule.what.format, n) >= 25)
    complain(kUnchanged, "its fault in the encoding changed no code and no scale");
  if (rule.what.kind == FaultKind::kBitflip && rule.what.count > 0 && n.elements > 0 &&
      n.changed != n.active_calls * static_cast<double>(rule.what.count)) {
    complain(kFlips, fmt::format("{} elements changed in {} calls where exactly {} a call were asked for", n.changed,
                                 n.active_calls, rule.what.count));
  }
  if (const auto complaint = strength_complaint(rule, dtype, n, judgement)) reasons.push_back(*complaint);
  return reasons;
}

}  // namespace faultline::numeric
