// The rules that selftest applies, and how it compares tensors: by bits, because a NaN equals nothing and -0.0 equals
// 0.
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <filesystem>

#include "base/files/file.h"
#include "base/files/temporary_folder.h"
#include "cli/selftest/selftest.h"
#include "numeric/portable/portable.h"

namespace faultline::cli {
namespace {

constexpr const char* kSamples[] = {
    "relative_gaussian(strength=0.05)",
    "relative_gaussian(strength=0.001, rule.rounding=stochastic)",
    "absolute_gaussian(strength=0.01)",
    "scaled_gaussian(strength=0.05)",
    "scaled_gaussian(strength=0.05, scale=mean_abs, axis=channel)",
    "nondeterministic(factor=5)",
    "nondeterministic(factor=5, mode=inconsistent, axis=tensor)",
    "nondeterministic(factor=5, mode=correlated)",
    "systematic_bias(strength=0.01)",
    "gain(strength=0.02)",
    "offset(strength=0.1, axis=tensor)",
    "truncate(bits=3)",
    "truncate(bits=3, mode=nearest)",
    "truncate(bits=3, mode=stochastic)",
    "deadzone(threshold=0.1)",
    "saturate(margin=0.3)",
    "spike(probability=0.01)",
    "bitflip(count=5)",
    "bitflip(field=exponent, rate=0.01)",
    "stuck_at(bit=1, value=1)",
    "zero",
    "nan",
    "inf",
    "swap(length=8, count=2)",
    "quantize(format=mxfp4)",
    "quantize(format=nvfp4, rounding=stochastic)",
};

// A profile is read from a file; this one is gone again when the rule has been read.
numeric::Rule profile_rule() {
  const TemporaryFolder folder("selftest");
  const std::filesystem::path file = folder.path() / "profile.json";
  write_file_atomically(file, R"({"version": 1, "dtype": "fp32", "share_equal": 0.2,
                                  "quantiles": [[0, -0.1], [0.5, 0.01], [1, 0.1]]})");
  return numeric::parse_rule(fmt::format("profile(file='{}')", file.string()), numeric::RuleUse::kOnTensor);
}

}  // namespace

std::vector<numeric::Rule> sample_rules() {
  std::vector<numeric::Rule> rules;
  for (const char* text : kSamples) rules.push_back(numeric::parse_rule(text, numeric::RuleUse::kOnTensor));
  rules.push_back(profile_rule());
  return rules;
}

std::vector<numeric::Rule> format_rules() {
  std::vector<numeric::Rule> rules;
  for (const numeric::FormatInfo& info : numeric::format_infos()) {
    rules.push_back(numeric::parse_rule(fmt::format("quantize(format={})", info.name), numeric::RuleUse::kOnTensor));
  }
  return rules;
}

at::Tensor raw_bits(const at::Tensor& x) {
  return x.contiguous().view(x.element_size() == 2 ? at::kShort : x.element_size() == 4 ? at::kInt : at::kLong);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) { return at::equal(raw_bits(a), raw_bits(b)); }

int64_t differing(const at::Tensor& a, const at::Tensor& b) {
  return raw_bits(a).ne(raw_bits(b)).sum().item<int64_t>();
}

const std::vector<at::ScalarType>& dtypes_on(const at::Device& device) {
  static const std::vector<at::ScalarType> cpu = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
  static const std::vector<at::ScalarType> cuda = {at::kFloat, at::kBFloat16, at::kHalf};
  return device.is_cpu() && !numeric::portable::serves(device) ? cpu : cuda;
}

}  // namespace faultline::cli
