// CPU and CUDA are one: every kind and format, every dtype, shapes that are multiples of nothing, empty and
// non-contiguous tensors give the same bits and the same ledger, to the last bit, random kinds included.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/generated_input.h"
#include "cli/selftest/selftest.h"
#include "numeric/apply.h"

namespace faultline::cli {
namespace {

std::vector<std::vector<int64_t>> shapes(bool quick) {
  std::vector<std::vector<int64_t>> all = {{0}, {1}, {7, 13}, {33, 257}, {3, 5, 129}, {0, 64}, {2, 4099}};
  if (!quick) all.push_back({1031, 2049});
  return all;
}

struct Result {
  at::Tensor values, ledger;
  std::string refusal;  // a shape too small for the rule is refused alike on both
};

Result apply_on(const at::Device& device, const at::Tensor& input, const numeric::Rule& rule, bool transposed,
                uint64_t seed) {
  at::Tensor x = input.clone().to(device), ledger = numeric::make_ledger(device);
  const at::Tensor view = transposed ? x.transpose(0, -1) : x;
  try {
    numeric::apply_(view, rule, {seed, "selftest", 1}, {3, 2, {}}, {{}, ledger, {}});
  } catch (const UsageError& error) {
    return {x.cpu(), ledger.cpu(), error.what()};
  }
  return {x.cpu(), ledger.cpu(), ""};
}

std::string compare(const numeric::Rule& rule, const std::vector<int64_t>& shape, at::ScalarType dtype, bool transposed,
                    const SelftestOptions& options) {
  const at::Tensor input = gaussian_tensor({shape, dtype, 0, 1, options.seed});
  const Result host = apply_on(at::kCPU, input, rule, transposed, options.seed);
  const Result device = apply_on(options.device, input, rule, transposed, options.seed);
  const std::string where =
      fmt::format("{} ({}){}", c10::toString(dtype), fmt::join(shape, ", "), transposed ? " transposed" : "");
  if (host.refusal != device.refusal)
    return fmt::format("{}: refused on one device only: {}{}", where, host.refusal, device.refusal);
  const int64_t changed = differing(host.values, device.values);
  if (changed > 0) return fmt::format("{}: {} elements differ", where, changed);
  return same_bits(host.ledger, device.ledger) ? "" : fmt::format("{}: the ledgers differ", where);
}

std::string equal_everywhere(const numeric::Rule& rule, const SelftestOptions& options) {
  for (const at::ScalarType dtype : dtypes_on(options.device)) {
    for (const std::vector<int64_t>& shape : shapes(options.quick)) {
      for (const bool transposed : {false, true}) {
        const std::string complaint = compare(rule, shape, dtype, transposed, options);
        if (!complaint.empty()) return complaint;
      }
    }
  }
  return "";
}

std::string fingerprints_agree(const SelftestOptions& options) {
  for (const std::vector<int64_t>& shape : shapes(options.quick)) {
    for (const at::ScalarType dtype : dtypes_on(options.device)) {
      const at::Tensor x = gaussian_tensor({shape, dtype, 0, 1, options.seed}), y = x.to(options.device);
      if (numeric::digest(x).item<int64_t>() != numeric::digest(y).item<int64_t>())
        return fmt::format("digests differ at ({})", fmt::join(shape, ", "));
      if (numeric::checksum(x).item<int64_t>() != numeric::checksum(y).item<int64_t>())
        return fmt::format("sums differ at ({})", fmt::join(shape, ", "));
    }
  }
  return "";
}

}  // namespace

std::vector<Check> device_checks(const SelftestOptions& options) {
  std::vector<Check> checks;
  if (options.device.is_cpu()) return checks;
  std::vector<numeric::Rule> rules = sample_rules();
  for (numeric::Rule& rule : format_rules()) rules.push_back(std::move(rule));
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const std::string what = rules[i].what.format_name.empty() ? std::string(numeric::kind_name(rules[i].what.kind))
                                                               : rules[i].what.format_name;
    checks.push_back({fmt::format("CPU = CUDA, case {}: {}", i + 1, what),
                      [rule = rules[i], options] { return equal_everywhere(rule, options); }});
  }
  checks.push_back({"CPU = CUDA: digest and plain sum", [=] { return fingerprints_agree(options); }});
  return checks;
}

}  // namespace faultline::cli
