// Number formats and deviates: quantising twice is quantising once, NVFP4 has its known quality at any scale of the
// data, and the deviates are normal to the fourth moment.
#include <fmt/format.h>

#include <cmath>

#include "cli/generated_input.h"
#include "cli/ledger_report.h"
#include "cli/selftest/selftest.h"
#include "numeric/apply.h"

namespace faultline::cli {
namespace {

// Scales that are powers of two, and casts, keep their own values exactly. A scale that is a quotient of the largest
// magnitude is formed anew from a value that was rounded, so the second pass may differ in the last bits of fp32.
bool is_exactly_idempotent(const numeric::FormatArguments& format) {
  return format.scale == numeric::ScaleRule::kPower || format.scale == numeric::ScaleRule::kNone;
}

// HiF4's largest number may set another scale. A rotation's rounding moves numbers across the middle of two codes.
bool is_idempotent(const numeric::FormatArguments& format) {
  return format.scale != numeric::ScaleRule::kHierarchy && !format.hadamard;
}

at::Tensor quantized(const at::Tensor& x, const numeric::Rule& rule, const SelftestOptions& options) {
  const at::Tensor y = x.clone();
  numeric::apply_(y, rule, {options.seed, "selftest", 0}, {});
  return y;
}

std::string idempotent(const numeric::Rule& rule, const SelftestOptions& options) {
  const at::Tensor x = gaussian_tensor({{67, 300}, at::kFloat, 0, 1, options.seed}).to(options.device);
  const at::Tensor once = quantized(x, rule, options), twice = quantized(once, rule, options);
  if (same_bits(x, once)) return "it changed nothing";
  if (is_exactly_idempotent(rule.what.format)) {
    const int64_t changed = differing(once, twice);
    return changed == 0 ? "" : fmt::format("the second pass changed {} elements", changed);
  }
  const double error = (once - twice).abs().max().item<double>() / x.abs().max().item<double>();
  return error <= 0x1p-20 ? "" : fmt::format("the second pass moved an element by {:.3g} of the maximum", error);
}

double sqnr(const char* fault, double deviation, const SelftestOptions& options) {
  const at::Tensor x = gaussian_tensor({{1024, 1024}, at::kFloat, 0, deviation, options.seed}).to(options.device);
  const at::Tensor ledger = numeric::make_ledger(options.device);
  const numeric::Rule rule = numeric::parse_rule(fault, numeric::RuleUse::kOnTensor);
  numeric::apply_(x, rule, {options.seed, "selftest", 0}, {}, {{}, ledger, {}});
  return make_report(rule, numeric::Dtype::kFloat32, ledger).numbers.sqnr_db.value_or(0);
}

std::string nvfp4_quality(const SelftestOptions& options) {
  const double wide = sqnr("quantize(format=nvfp4)", 1, options),
               narrow = sqnr("quantize(format=nvfp4)", 0.02, options);
  const bool good = std::abs(wide - narrow) < 0.05 && std::abs(wide - 20.43) < 0.1;
  return good ? "" : fmt::format("{:.3f} dB on N(0, 1), {:.3f} dB on N(0, 0.02^2)", wide, narrow);
}

// Each moment within 6.2 standard errors of a normal variable's.
std::string normal_moments(const SelftestOptions& options, at::ScalarType dtype) {
  const int64_t n = options.quick ? int64_t{1} << 20 : int64_t{1} << 23;
  const at::Tensor x = gaussian_tensor({{n / 1024, 1024}, dtype, 0, 0, options.seed}).to(options.device);
  numeric::apply_(x, numeric::parse_rule("absolute_gaussian(strength=1)", numeric::RuleUse::kOnTensor),
                  {options.seed, "selftest", 0}, {});
  const at::Tensor z = x.cpu().to(at::kDouble);
  const double count = static_cast<double>(n), expected[] = {0, 1, 0, 3}, variance[] = {1, 2, 15, 96};
  // 16-bit words end at 4.17 sigma, and the results are rounded to 16 bits.
  const double rounding[] = {0, dtype == at::kFloat ? 0 : 2e-3, 0, dtype == at::kFloat ? 0 : 0.02};
  at::Tensor power = z.clone();
  for (int moment = 0; moment < 4; ++moment, power.mul_(z)) {
    const double seen = power.mean().item<double>();
    const double tolerance = 6.2 * std::sqrt(variance[moment] / count) + rounding[moment];
    if (!(std::abs(seen - expected[moment]) <= tolerance)) {
      return fmt::format("moment {} is {:.6g}, expected {} ± {:.3g}", moment + 1, seen, expected[moment], tolerance);
    }
  }
  return "";
}

}  // namespace

std::vector<Check> format_checks(const SelftestOptions& options) {
  std::vector<Check> checks;
  for (const numeric::Rule& rule : format_rules()) {
    if (!is_idempotent(rule.what.format)) continue;
    const bool exact = is_exactly_idempotent(rule.what.format);
    checks.push_back({fmt::format("{} twice is {} once{}", rule.what.format_name, rule.what.format_name,
                                  exact ? "" : " to 2^-20 of the maximum"),
                      [=] { return idempotent(rule, options); }});
  }
  checks.push_back({"nvfp4 has 20.43 dB on N(0, 1) and on N(0, 0.02^2)", [=] { return nvfp4_quality(options); }});
  checks.push_back(
      {"deviates of 32-bit words are normal to the 4th moment", [=] { return normal_moments(options, at::kFloat); }});
  checks.push_back(
      {"deviates of 16-bit words are normal to the 4th moment", [=] { return normal_moments(options, at::kHalf); }});
  return checks;
}

}  // namespace faultline::cli
