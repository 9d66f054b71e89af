// Faults on tensors, end to end on the CPU.
#include "numeric/apply.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "numeric/ledger.h"

namespace faultline::numeric {
namespace apply_test {

at::Tensor normal(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kFloat)).to(dtype);
}

TEST(Apply, RelativeGaussianHasTheAskedStrength) {
  at::Tensor x = normal({512, 1024}), y = x.clone(), ledger = make_ledger(at::kCPU);
  apply_(y, parse_rule("relative_gaussian(strength=0.05)", RuleUse::kOnTensor), {1, "layers.0.mlp", 0}, {},
         {{}, ledger, {}});
  const at::Tensor columns = ledger_columns(ledger);
  const double* row = columns.const_data_ptr<double>();
  EXPECT_EQ(row[kElements], 512 * 1024);
  EXPECT_NEAR(std::sqrt(row[kSumSquaredRelative] / row[kSampled]), 0.05, 0.002);
  EXPECT_NEAR(((y - x) / x).square().mean().sqrt().item<double>(), 0.05, 0.0005);
}

}  // namespace apply_test
}  // namespace faultline::numeric
