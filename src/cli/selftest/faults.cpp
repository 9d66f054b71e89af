// The three promises of every fault kind: it happens where asked, nothing else changes to the bit, the same seed
// repeats it. And the fourth: a strength of zero is the identity, whatever the bits.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include "base/text.h"
#include "cli/generated_input.h"
#include "cli/ledger_report.h"
#include "cli/selftest/selftest.h"
#include "numeric/apply.h"
#include "numeric/arithmetic.h"

namespace faultline::cli {
namespace {

constexpr int64_t kRows = 129, kColumns = 257;  // multiples of nothing

struct Applied {
  at::Tensor before, after;  // on the CPU
  LedgerReport report;
};

Applied apply_to(const at::Tensor& x, const numeric::Rule& rule, const SelftestOptions& options, uint64_t seed) {
  const at::Tensor y = x.clone().to(options.device), ledger = numeric::make_ledger(options.device);
  numeric::apply_(y, rule, {seed, "selftest", 0}, {}, {{}, ledger, {}});
  return {x, y.cpu(), make_report(rule, numeric::dtype_of(x), ledger)};
}

at::Tensor input(at::ScalarType dtype, const SelftestOptions& options) {
  return gaussian_tensor({{kRows, kColumns}, dtype, 0, 1, options.seed});
}

// These choose their elements themselves and take no extent.
bool has_own_extent(const numeric::Rule& rule) {
  return rule.what.kind == numeric::FaultKind::kSwap || rule.what.count > 0;
}

numeric::Rule with_extent(numeric::Rule rule) {
  if (!has_own_extent(rule)) rule.extent = {.fraction = 0.25, .structure = numeric::Structure::kChannel};
  return rule;
}

at::Tensor extent_mask(const numeric::Rule& rule, const at::Tensor& x, const SelftestOptions& options) {
  const numeric::Keys keys = numeric::make_keys({options.seed, "selftest", 0}, rule.name);
  const numeric::FaultArguments a = numeric::lower_fault(rule, numeric::shape_of(x), keys, {});
  at::Tensor mask = at::empty(x.sizes(), at::kBool);
  bool* selected = mask.mutable_data_ptr<bool>();
  for (int64_t i = 0; i < x.numel(); ++i)
    selected[i] = numeric::extent_selects(a.extent, keys.mask, i / kColumns, i % kColumns);
  return mask;
}

std::string happens(const numeric::Rule& rule, at::ScalarType dtype, const SelftestOptions& options) {
  const Applied applied = apply_to(input(dtype, options), rule, options, options.seed);
  if (!applied.report.complaints.empty()) return applied.report.complaints.front().sentence;
  const int64_t changed = differing(applied.before, applied.after);
  if (static_cast<double>(changed) != applied.report.numbers.changed) {
    return fmt::format("{} elements changed, the ledger says {}", changed, applied.report.numbers.changed);
  }
  return changed > 0 ? "" : "nothing changed";
}

std::string stays_inside(const numeric::Rule& rule, at::ScalarType dtype, const SelftestOptions& options) {
  const Applied applied = apply_to(input(dtype, options), rule, options, options.seed);
  const int64_t changed = differing(applied.before, applied.after);
  if (rule.what.kind == numeric::FaultKind::kSwap) {
    const bool sum = at::equal(numeric::checksum(applied.before), numeric::checksum(applied.after));
    return sum && changed <= 2 * rule.what.count * rule.what.length ? "" : "it did more than exchange its regions";
  }
  if (rule.what.count > 0) return changed == rule.what.count ? "" : fmt::format("{} elements changed", changed);
  const at::Tensor mask = extent_mask(rule, applied.before, options);
  const at::Tensor outside = raw_bits(applied.before).ne(raw_bits(applied.after)).logical_and_(mask.logical_not());
  const auto selected = static_cast<double>(mask.sum().item<int64_t>());
  if (selected != applied.report.numbers.selected)
    return fmt::format("{} selected, {} in the extent", applied.report.numbers.selected, selected);
  const int64_t strays = outside.sum().item<int64_t>();
  return strays == 0 ? "" : fmt::format("{} elements outside the extent changed", strays);
}

std::string repeats(const numeric::Rule& rule, at::ScalarType dtype, const SelftestOptions& options) {
  const at::Tensor x = input(dtype, options);
  const Applied first = apply_to(x, rule, options, options.seed), second = apply_to(x, rule, options, options.seed);
  if (!same_bits(first.after, second.after)) return "the same seed gave other bits";
  const Applied other = apply_to(x, rule, options, options.seed + 1);
  return same_bits(first.after, other.after) ? "another seed gave the same bits" : "";
}

bool has_strength(const numeric::Rule& rule) {
  switch (rule.what.kind) {
    case numeric::FaultKind::kRelativeGaussian:
    case numeric::FaultKind::kAbsoluteGaussian:
    case numeric::FaultKind::kScaledGaussian:
    case numeric::FaultKind::kNondeterministic:
    case numeric::FaultKind::kSystematicBias:
    case numeric::FaultKind::kGain:
    case numeric::FaultKind::kOffset:
    case numeric::FaultKind::kDeadzone:
    case numeric::FaultKind::kSpike: return true;
    case numeric::FaultKind::kSaturate: return rule.what.relative;
    default: return false;
  }
}

// Zeros and infinities of both signs, quiet and signalling NaNs with payloads, subnormals, among ordinary numbers.
at::Tensor awkward_values(at::ScalarType dtype, const SelftestOptions& options) {
  at::Tensor x = input(dtype, options), bits = raw_bits(x).view({-1});
  const int width = static_cast<int>(x.element_size()) * 8;
  const int mantissa = numeric::dtype_mantissa_bits(numeric::dtype_of(x));
  const auto sign = uint64_t{1} << (width - 1), infinity = ((uint64_t{1} << (width - 1 - mantissa)) - 1) << mantissa;
  const uint64_t values[] = {0,           1, 3, infinity, infinity | 1, infinity | (uint64_t{1} << (mantissa - 1)) | 5,
                             infinity - 1};
  int64_t position = 0;
  for (const uint64_t value : values) {
    for (const uint64_t signed_value : {value, value | sign}) {
      bits.select(0, position).fill_(static_cast<int64_t>(signed_value << (64 - width)) >> (64 - width));
      position += 2 * kColumns + 1;
    }
  }
  return x;
}

std::string identity_at_zero(const numeric::Rule& rule, at::ScalarType dtype, const SelftestOptions& options) {
  numeric::Rule unconditional = rule;
  unconditional.stochastic_rounding = false;
  const at::Tensor x = awkward_values(dtype, options), y = x.clone().to(options.device),
                   ledger = numeric::make_ledger(options.device);
  numeric::apply_(y, unconditional, {options.seed, "selftest", 0}, {0, 0, 0.0}, {{}, ledger, {}});
  const int64_t changed = differing(x, y.cpu());
  return changed == 0 ? "" : fmt::format("{} elements changed", changed);
}

std::string title(const numeric::Rule& rule) {
  const Node& what = rule.source.at("what");
  std::string text(numeric::kind_name(rule.what.kind));
  for (const char* key : {"mode", "field", "format", "scale", "axis"}) {
    if (const Node* node = what.find(key)) text += " " + node->as_string();
  }
  return rule.stochastic_rounding ? text + " stochastic" : text;
}

using Property = std::string (*)(const numeric::Rule&, at::ScalarType, const SelftestOptions&);

// One line for all dtypes; the first that fails is named.
Check for_all_dtypes(const std::string& name, const numeric::Rule& rule, Property property,
                     const SelftestOptions& options) {
  return {name, [=] {
            for (const at::ScalarType dtype : dtypes_on(options.device)) {
              const std::string complaint = property(rule, dtype, options);
              if (!complaint.empty()) return fmt::format("{}: {}", c10::toString(dtype), complaint);
            }
            return std::string();
          }};
}

}  // namespace

std::vector<Check> fault_checks(const SelftestOptions& options) {
  std::vector<Check> checks;
  for (const numeric::Rule& rule : sample_rules()) {
    const std::string name = title(rule);
    checks.push_back(for_all_dtypes(name + " happens", rule, happens, options));
    checks.push_back(for_all_dtypes(name + " leaves the rest alone", with_extent(rule), stays_inside, options));
    checks.push_back(for_all_dtypes(name + " repeats by its seed", with_extent(rule), repeats, options));
    if (has_strength(rule))
      checks.push_back(for_all_dtypes(name + " at strength 0 is the identity", rule, identity_at_zero, options));
  }
  return checks;
}

}  // namespace faultline::cli
