// The strength band on data that the dtype can hold only as subnormal numbers, and that it stays tight on all others.
#include "numeric/evidence.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "numeric/apply.h"

namespace faultline::numeric {
namespace evidence_test {

struct Measured {
  Rule rule;
  Dtype dtype;
  LedgerNumbers numbers;
};

Measured measure(const std::string& fault, at::ScalarType dtype, double deviation) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  const at::Tensor x = (at::randn({512, 1024}, generator, at::kDouble) * deviation).to(dtype);
  const Rule rule = parse_rule(fault, RuleUse::kOnTensor);
  const at::Tensor ledger = make_ledger(at::kCPU);
  apply_(x, rule, {1, "layers.0.mlp", 0}, {}, {{}, ledger, {}});
  const at::Tensor columns = ledger_columns(ledger);
  return {rule, dtype_of(x), read_ledger(columns.const_data_ptr<double>())};
}

const std::vector<std::string> kFaults = {"relative_gaussian(strength=0.05)",
                                          "relative_gaussian(strength=0.003)",
                                          "relative_gaussian(strength=0.5)",
                                          "gain(strength=0.02)",
                                          "gain(strength=0.3)",
                                          "relative_gaussian(strength=0.05, rule.rounding=stochastic)",
                                          "relative_gaussian(strength=0.001, rule.rounding=stochastic)",
                                          "gain(strength=0.01, rule.rounding=stochastic)"};

TEST(Evidence, RaisesNoFalseAlarmOnSubnormalData) {
  for (const std::string& fault : kFaults) {
    for (const double deviation : {3e-7, 1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2, 0.1, 1.0}) {
      const Measured m = measure(fault, at::kHalf, deviation);
      if (m.numbers.changed == 0) continue;  // too coarse a grid to show it, which is reported, and rightly
      const auto reasons = missing_evidence(m.rule, m.dtype, m.numbers);
      EXPECT_TRUE(reasons.empty()) << deviation << ": " << joined_sentences(reasons);
    }
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      for (const double deviation : {3e-40, 3e-39, 1e-38, 1e-37, 1e-30, 1e-20, 1.0}) {
        const Measured m = measure(fault, dtype, deviation);
        if (m.numbers.changed == 0) continue;
        const auto reasons = missing_evidence(m.rule, m.dtype, m.numbers);
        EXPECT_TRUE(reasons.empty()) << dtype << ' ' << deviation << ": " << joined_sentences(reasons);
      }
    }
  }
}

TEST(Evidence, SamplesNormalNumbersOnly) {
  const Measured m = measure("relative_gaussian(strength=0.05)", at::kHalf, 1e-6);
  EXPECT_GT(m.numbers.changed, 0);
  EXPECT_EQ(m.numbers.sampled, 0);
}

TEST(Evidence, KnowsEveryMantissaOfFp16UnderAGain) {
  const Rule rule = parse_rule("gain(strength=7e-4)", RuleUse::kOnTensor);
  for (const double value : {1.0, 1.9990234375, 1.3955078125}) {  // one gap each: the least and most lie at the ends
    const at::Tensor x = at::full({256, 256}, value, at::kHalf), ledger = make_ledger(at::kCPU);
    apply_(x, rule, {1, "layers.0.mlp", 0}, {}, {{}, ledger, {}});
    const at::Tensor columns = ledger_columns(ledger);
    const auto reasons = missing_evidence(rule, Dtype::kFloat16, read_ledger(columns.const_data_ptr<double>()));
    EXPECT_TRUE(reasons.empty()) << joined_sentences(reasons);
  }
}

TEST(Evidence, SpansTheStrengthsOfASchedule) {
  const Measured m = measure("relative_gaussian(strength=0.05)", at::kBFloat16, 1);
  EXPECT_TRUE(missing_evidence(m.rule, m.dtype, m.numbers, {1e-9, {0.02, 0.05}}).empty());
  EXPECT_FALSE(missing_evidence(m.rule, m.dtype, m.numbers, {1e-9, {0.01, 0.02}}).empty());
}

TEST(Evidence, StillCatchesAWrongStrengthInFp16) {
  const Measured m = measure("relative_gaussian(strength=0.05)", at::kHalf, 0.02);
  for (const double factor : {0.9, 1.1}) {
    LedgerNumbers bent = m.numbers;
    *bent.relative_rms *= factor;
    EXPECT_FALSE(missing_evidence(m.rule, m.dtype, bent).empty()) << factor;
  }
}

}  // namespace evidence_test
}  // namespace faultline::numeric
