// Faults that replace what an operator computes.
#include "numeric/apply.h"
#include "tap/report.h"
#include "tap/testing.h"

namespace faultline::tap {
namespace replacement_test {

TEST(Replacement, AccumulatesProductsInANarrowAccumulator) {
  const at::Tensor a = noise_like({16, 256}, at::kFloat), b = noise_like({256, 24}, at::kFloat);
  const at::Tensor clean = a.mm(b);
  at::Tensor expected = at::zeros({16, 24}, at::kBFloat16);
  for (int64_t k = 0; k < 256; k += 64)
    expected = (expected.to(at::kFloat) + a.narrow(1, k, 64).mm(b.narrow(0, k, 64)).to(at::kBFloat16).to(at::kFloat))
                   .to(at::kBFloat16);
  const Armed plan(make_plan({"accumulate(dtype=bf16, chunk=64) @ operator=matmul"}));
  EXPECT_TRUE(at::equal(a.mm(b), expected.to(at::kFloat)));
  EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  EXPECT_FALSE(at::equal(a.mm(b), clean));
}

TEST(Replacement, DropsAKTileAndRefusesOneThatDoesNotExist) {
  const at::Tensor a = noise_like({8, 128}, at::kFloat), b = noise_like({128, 8}, at::kFloat);
  const at::Tensor half = a.narrow(1, 64, 64).mm(b.narrow(0, 64, 64));
  {
    const Armed plan(make_plan({"accumulate(dtype=fp32, chunk=64, drop=0) @ operator=aten::mm"}));
    EXPECT_TRUE(at::allclose(a.mm(b), half));
  }
  const Armed plan(make_plan({"accumulate(dtype=fp32, chunk=64, drop=2) @ operator=aten::mm"}));
  EXPECT_THROW((void)a.mm(b), c10::Error);
}

TEST(Replacement, ApproximatesFunctionsAsCloselyAsTheirSizeAllows) {
  const at::Tensor x = at::linspace(-10, 10, 4001);
  const at::Tensor exact = at::silu(x), scores = at::softmax(x.view({1, -1}), -1), roots = at::rsqrt(x.abs() + 0.01);
  const auto error = [&](const std::string& fault, const auto& run, const at::Tensor& wanted) {
    const Armed plan(make_plan({fault}));
    const double largest = (run() - wanted).abs().max().template item<double>();
    EXPECT_GT(largest, 0) << fault;
    return largest;
  };
  const auto silu = [&] { return at::silu(x); };
  EXPECT_LT(error("approximate(function=silu, method=piecewise, size=256) @ operator=activation", silu, exact), 3e-3);
  EXPECT_LT(error("approximate(function=silu, method=table, size=1024) @ operator=activation", silu, exact), 2e-2);
  EXPECT_LT(error("approximate(function=silu, method=polynomial, size=16) @ operator=activation", silu, exact), 2e-2);
  EXPECT_GT(error("approximate(function=silu, method=piecewise, size=16) @ operator=activation", silu, exact), 1e-2);
  EXPECT_LT(error(
                "approximate(function=exp, method=piecewise, size=1024) @ operator=softmax",
                [&] { return at::softmax(x.view({1, -1}), -1); }, scores),
            1e-4);
  EXPECT_LT(error(
                "approximate(function=rsqrt, method=piecewise, size=256) @ operator=norm",
                [&] { return at::rsqrt(x.abs() + 0.01); }, roots),
            1e-3);
}

TEST(Replacement, KeepsThePreviousCallsValuesWhereStale) {
  const at::Tensor a = noise_like({16, 16}), b = noise_like({16, 16}), c = noise_like({16, 16}).add(1);
  const at::Tensor first = a.mm(b), second = a.mm(c);
  const Armed plan(make_plan({"stale() @ operator=aten::mm"}));
  EXPECT_TRUE(at::equal(a.mm(b), first));  // nothing before it
  EXPECT_TRUE(at::equal(a.mm(c), first));
  EXPECT_TRUE(at::equal(a.mm(b), second));
}

}  // namespace replacement_test
}  // namespace faultline::tap
