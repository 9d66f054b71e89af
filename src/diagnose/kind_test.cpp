// Kinds where few elements changed, or where two stories fit: the ones a formula alone gets wrong.
#include "diagnose/kind.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "diagnose/campaign/campaign.h"
#include "nlohmann/json.hpp"

namespace faultline::diagnose {
namespace kind_test {

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, random, at::TensorOptions(at::kFloat)).to(at::kBFloat16);
}

std::string kind_of(const at::Tensor& expected, const at::Tensor& observed, const at::Tensor& tolerance = {}) {
  return classify({"known answers", "linear", site::kNowhere, expected, observed, tolerance}, 0, expected.size(1)).name;
}

TEST(Kind, OfOneSpikeIsNoGain) {  // all but one element of its column are as they should be
  const at::Tensor expected = normal({64, 8}, 1);
  at::Tensor observed = expected.clone();
  observed[5][3] = 10 * expected[5].abs().max().item<float>();
  EXPECT_EQ(kind_of(expected, observed), "spike");
}

TEST(Kind, OfALargestChannelCutOffIsASaturation) {  // every value of it is 0.7 of what it was: a gain, too
  at::Tensor expected = normal({16, 8}, 2);
  expected.select(1, 3).copy_(100 + 20 * normal({16}, 3).abs());
  at::Tensor observed = expected.clone();
  observed.select(1, 3).mul_(0.7);
  EXPECT_EQ(kind_of(expected, observed), "saturate");
  observed.copy_(expected);
  observed.select(1, 2).mul_(0.7);  // not the largest
  EXPECT_EQ(kind_of(expected, observed), "gain");
}

TEST(Kind, OfAStuckBitIsSeenThroughRounding) {  // the last bits of the right answer are not known
  const at::Tensor right = normal({32, 4}, 4), exact = right.to(at::kDouble) * 1.002;
  const at::Tensor tolerance = 3 * half_ulp(exact, at::kBFloat16);
  const at::Tensor observed = right.view(at::kShort).bitwise_or(1 << 5).view(at::kBFloat16);
  EXPECT_EQ(kind_of(exact, observed, tolerance), "stuck_at");
}

TEST(Kind, OfOneSignIsToldFromTheRows) {  // an offset grows with its row, a bias does not
  const at::Tensor size = at::exp2(at::arange(16, at::kFloat) / 4).unsqueeze(1);
  const at::Tensor expected = (size * (1 + normal({16, 32}, 5).to(at::kFloat).abs())).to(at::kBFloat16);
  const at::Tensor wide = expected.to(at::kDouble);
  EXPECT_EQ(kind_of(expected, (wide + 0.3).to(at::kBFloat16)), "systematic_bias");
  EXPECT_EQ(kind_of(expected, (wide + 0.1 * wide.std(1, false, true)).to(at::kBFloat16)), "offset");
}

TEST(Kind, OfABiasOutOfNothingIsNoStuckBit) {  // 2^-6 with one bit turned round is less than any bound of "nothing"
  const at::Tensor expected = at::zeros({8, 8}, at::kFloat);
  const at::Tensor sign = normal({8, 8}, 6).sign();
  EXPECT_EQ(kind_of(expected, sign * 0x1p-6, at::full_like(expected, 0x1p-40)), "systematic_bias");
}

// Wrong in every element by no formula, the same twice: what a dead zone in front of a product does behind it.
TEST(Kind, OfAnErrorThatRepeatsIsNeverNoise) {
  const at::Tensor expected = normal({16, 32}, 7), error = 0.01 * normal({16, 32}, 8),
                   other = 0.01 * normal({16, 32}, 9);
  const auto classified = [&](const std::vector<at::Tensor>& calls, const char* relation) {
    Observation observation{relation, "linear", site::kNowhere, expected, calls[0]};
    observation.repetitions.assign(calls.begin() + 1, calls.end());
    return classify(observation, 0, 32);
  };
  const at::Tensor wrong = expected + error;
  const Kind same = classified({wrong, wrong.clone()}, "known answers");
  EXPECT_EQ(same.name, "unexplained");
  EXPECT_NE(same.detail.find("repeatable; perhaps in its input"), std::string::npos) << same.detail;
  const Kind fresh = classified({wrong, expected + other}, "known answers");
  EXPECT_EQ(fresh.name, "noise");
  EXPECT_NE(fresh.detail.find("fresh at every call"), std::string::npos) << fresh.detail;
  EXPECT_EQ(classified({wrong}, "known answers").name, "unexplained");              // asked once
  EXPECT_EQ(classified({wrong, expected.clone()}, "known answers").name, "noise");  // right once
  EXPECT_EQ(classified({wrong}, kRepetition).name, "noise");
}

Json bars_of(int64_t right, int64_t trials) {
  const Json rate = {{"right", right}, {"trials", trials}};
  const Json rates = {{"layer", rate}, {"layer_and_operator", rate}, {"kind", rate}};
  return judge_bars({{"shadow", {{"pools", {{"gain x linear", rates}, {"gain", {}}}}}}});
}

TEST(Bars, AreJudgedOnPoolsThatAreLargeEnough) {
  EXPECT_EQ(bars_of(297, 300)[0]["holds"], true);
  EXPECT_EQ(bars_of(296, 300)[0]["holds"], false);
  EXPECT_TRUE(bars_of(299, 299)[0]["holds"].is_null());
  EXPECT_EQ(bars_of(296, 300)[0]["where"], "gain x linear");
}

}  // namespace kind_test
}  // namespace faultline::diagnose
