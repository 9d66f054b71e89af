// What rounding allows an operator: arithmetic as real kernels do it is not accused, an error a little larger is.
#include "diagnose/recomputation.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <limits>

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

}  // namespace recomputation_test
}  // namespace faultline::diagnose
