// What rounding allows an operator: arithmetic as real kernels do it is not accused, an error a little larger is.
#include "diagnose/recomputation.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <limits>

#include "model/ops.h"

namespace faultline::diagnose {
namespace recomputation_test {

constexpr int64_t kTokens = 32, kHeadSize = 16;

// A row that attends to a sink: the first key is by far the likeliest and its value is nearly nothing, so that the
// result comes from chances of about 1e-6.
struct Sink {
  at::Tensor query = at::full({1, 1, 1, kHeadSize}, 1.0, at::kHalf);
  at::Tensor key = (at::randn({1, 1, kTokens, kHeadSize}) / 8).to(at::kHalf);
  at::Tensor value = (at::randn({1, 1, kTokens, kHeadSize}) * 100).to(at::kHalf);
  Sink() {
    key.select(2, 0).fill_(3.5);  // its score is 14, the others' about 0
    value.select(2, 0).fill_(0);
  }
  at::Tensor chances() const {  // relative to the largest, as kernels hold them
    const at::Tensor scores = at::matmul(query.to(at::kDouble), key.to(at::kDouble).transpose(-1, -2)) / 4;
    return (scores - scores.amax(-1, true)).exp();
  }
};

bool accused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& result) {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_scaled_dot_product_flash_attention_for_cpu", "");
  RecordedCall call;
  call.name = "aten::_scaled_dot_product_flash_attention_for_cpu", call.op = op;
  call.arguments = {query, key, value, 0.0, false, c10::IValue(), c10::IValue()};
  call.results = {result.to(query.scalar_type())};
  std::vector<Observation> observations;
  EXPECT_EQ(Recomputation().check(call, observations), Checked::kYes);
  EXPECT_EQ(observations.size(), 1u);
  return judge(observations.at(0)).has_value();
}

bool accused(const Sink& sink, const at::Tensor& result) { return accused(sink.query, sink.key, sink.value, result); }

TEST(Recomputation, ChancesThatAreSubnormalInHalfPrecisionAreNoFault) {
  at::manual_seed(1);
  const Sink sink;
  const at::Tensor chances = sink.chances(), held = chances.to(at::kHalf).to(at::kDouble);
  EXPECT_GT((held - chances).abs().max().item<double>(), 0x1p-26);  // they lose up to half a step of 2^-24
  const at::Tensor value = sink.value.to(at::kDouble);
  EXPECT_FALSE(accused(sink, at::matmul(held, value) / chances.sum(-1, true)));
}

TEST(Recomputation, AnErrorBeyondWhatSubnormalChancesLoseIsAFault) {
  at::manual_seed(1);
  const Sink sink;
  const at::Tensor value = sink.value.to(at::kDouble), chances = sink.chances();
  const at::Tensor exact = at::matmul(chances, value) / chances.sum(-1, true);
  EXPECT_FALSE(accused(sink, exact));
  EXPECT_TRUE(accused(sink, exact + 4 * 0x1p-24 * value.abs().sum(2, true)));
}

TEST(Recomputation, HeadsThatShareAKeyHeadAreEachComparedWithIt) {
  at::manual_seed(1);
  const at::Tensor query = at::randn({1, 4, 3, kHeadSize}, at::kBFloat16),
                   key = at::randn({1, 2, 3, kHeadSize}, at::kBFloat16),
                   value = at::randn({1, 2, 3, kHeadSize}, at::kBFloat16);
  const at::Tensor right = at::scaled_dot_product_attention(
      query.to(at::kDouble), key.to(at::kDouble), value.to(at::kDouble), {}, 0.0, false, {}, /*enable_gqa=*/true);
  EXPECT_FALSE(accused(query, key, value, right));
  EXPECT_TRUE(accused(query, key, value,
                      right.index_select(1, at::tensor({0, 2, 1, 3}, at::kLong))));  // as if heads took turns
}

// Of one call: whether something is wrong, and how many elements have no known answer.
struct Said {
  bool accused;
  int64_t untested;
};
Said said_of(const char* name, std::vector<c10::IValue> arguments, const at::Tensor& result) {
  RecordedCall call;
  call.name = name, call.op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  call.arguments = std::move(arguments), call.results = {result};
  std::vector<Observation> observations;
  EXPECT_EQ(Recomputation().check(call, observations), Checked::kYes);
  const Glance seen = glance(observations).at(0);
  return {seen.suspect && judge(observations.at(0)).has_value(), seen.untested};
}

TEST(Range, OverflowInsideANormIsNoFaultAndItsOwnResultIs) {
  at::manual_seed(1);
  at::Tensor x = at::randn({4, 32}, at::kBFloat16);
  x[1][3] = 1e25, x[2][5] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor weight = at::ones({32}, at::kFloat);
  at::Tensor y = model::ops::rms_norm(x, weight, 1e-5);
  EXPECT_EQ(y[1].count_nonzero().item<int64_t>(), 0);  // the sum of squares was infinite
  const Said right = said_of("faultline::rms_norm", {x, weight, 1e-5}, y);
  EXPECT_FALSE(right.accused);
  EXPECT_EQ(right.untested, 64);
  for (const float wrong : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    y[0][0] = wrong;
    EXPECT_TRUE(said_of("faultline::rms_norm", {x, weight, 1e-5}, y).accused) << wrong;
  }
}

TEST(Range, ResultsBeyondTheTypeAreNoFaultOfAProduct) {
  const at::Tensor weight = at::full({8, 16}, 16.0, at::kHalf);
  at::Tensor x = at::full({2, 16}, 200.0, at::kHalf);
  x[1].fill_(512);  // 131072 has no place in fp16
  at::Tensor y = model::ops::few_rows_linear(x, weight, {});
  EXPECT_TRUE(y[1].isinf().all().item<bool>());
  const Said right = said_of("faultline::few_rows_linear", {x, weight, c10::IValue()}, y);
  EXPECT_FALSE(right.accused);
  EXPECT_EQ(right.untested, 8);
  y[0][2] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(said_of("faultline::few_rows_linear", {x, weight, c10::IValue()}, y).accused);
}

TEST(Range, ScoresBeyondTheirRoundingDecideNothing) {
  at::manual_seed(1);
  at::Tensor query = at::randn({1, 2, 8, kHeadSize}), key = at::randn({1, 2, 8, kHeadSize});
  const at::Tensor value = at::randn({1, 2, 8, kHeadSize});
  key.select(2, 4).fill_(1e30);
  const auto run = [&] { return at::scaled_dot_product_attention(query, key, value, {}, 0.0, /*is_causal=*/true); };
  at::Tensor y = run();
  const char* name = "aten::_scaled_dot_product_flash_attention_for_cpu";
  const Said right = said_of(name, {query, key, value, 0.0, true, c10::IValue(), c10::IValue()}, y);
  EXPECT_FALSE(right.accused);
  EXPECT_EQ(right.untested, 2 * 4 * kHeadSize);  // queries 4 to 7, which see that key
  y.select(2, 1).mul_(1.001);
  EXPECT_TRUE(said_of(name, {query, key, value, 0.0, true, c10::IValue(), c10::IValue()}, y).accused);
}

}  // namespace recomputation_test
}  // namespace faultline::diagnose
