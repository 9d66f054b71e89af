// Faults on weights and on inputs: the operator computes with a faulted copy, the master stays.
#include "tap/substitution.h"

#include "numeric/apply.h"
#include "tap/report.h"
#include "tap/testing.h"

namespace faultline::tap {
namespace substitution_test {

TEST(Tap, SubstitutesWeightsInForwardAndBackwardAndKeepsTheMaster) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_();
  const at::Tensor x = noise_like({8, 32}, at::kFloat).requires_grad_();
  site::register_parameter(w, site::place_id("layers.0.q_proj"));
  const at::Tensor master = w.detach().clone();
  const at::Tensor faulted = w.detach().clone();
  numeric::apply_(faulted, numeric::parse_rule("quantize(format=mxfp4)", numeric::RuleUse::kOnTensor),
                  numeric::Identity{}, numeric::CallPoint{});
  const at::Tensor g = noise_like({8, 32}, at::kFloat);
  const Armed plan(make_plan({"quantize(format=mxfp4) @ operator=matmul, surface=weight"}));
  const at::Tensor y = x.mm(w.t());
  y.backward(g);
  EXPECT_TRUE(at::equal(y.detach(), [&] {
    disarm();
    return x.detach().mm(faulted.t());
  }()));
  EXPECT_TRUE(at::equal(x.grad(), g.mm(faulted)));
  EXPECT_TRUE(at::equal(w.grad(), g.t().mm(x.detach())));
  EXPECT_TRUE(at::equal(w.detach(), master));
  site::forget_parameters();
}

// The second rule once met the first one's copy, which is nobody's parameter, and did nothing.
TEST(Tap, ComposesTheRulesOfOneWeightInTheirOrder) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_();
  const at::Tensor x = noise_like({8, 32}, at::kFloat).requires_grad_(), g = noise_like({8, 32}, at::kFloat);
  site::register_parameter(w, site::place_id("layers.0.q_proj"));
  const at::Tensor master = w.detach().clone(), faulted = w.detach() * 1.5;
  numeric::apply_(faulted, numeric::parse_rule("quantize(format=mxfp4)", numeric::RuleUse::kOnTensor),
                  numeric::Identity{}, numeric::CallPoint{});
  at::Tensor y;
  {
    const Armed plan(make_plan({"gain(strength=0.5) @ operator=matmul, surface=weight",
                                "quantize(format=mxfp4) @ operator=matmul, surface=weight"}));
    y = x.mm(w.t());
    y.backward(g);
    EXPECT_TRUE(at::equal(x.mm(w.t()).detach(), y.detach())) << "the copies are kept";
  }
  EXPECT_TRUE(at::equal(y.detach(), x.detach().mm(faulted.t())));
  EXPECT_TRUE(at::equal(x.grad(), g.mm(faulted)));
  EXPECT_TRUE(at::equal(w.grad(), g.t().mm(x.detach())));
  EXPECT_TRUE(at::equal(w.detach(), master));
  site::forget_parameters();
}

// Autocast's way: the product reads a copy of the weight in another dtype, and so does its backward.
TEST(Tap, KnowsAWeightByTheCopyThatACastMadeOfIt) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_();
  const at::Tensor x = noise_like({8, 32}).requires_grad_(), g = noise_like({8, 32});
  site::register_parameter(w, site::place_id("layers.0.q_proj"));
  const at::Tensor master = w.detach().clone(), faulted = w.detach().to(at::kBFloat16);
  numeric::apply_(faulted, numeric::parse_rule("quantize(format=mxfp4)", numeric::RuleUse::kOnTensor),
                  numeric::Identity{}, numeric::CallPoint{});
  at::Tensor y;
  {
    const Armed plan(make_plan({"quantize(format=mxfp4) @ operator=matmul, surface=weight"}));
    y = x.mm(w.to(at::kBFloat16).t());
    y.backward(g);
    (void)x.detach().mm(x.detach().to(at::kFloat).to(at::kBFloat16).t());  // a copy of something else
    const auto evidence = plan->read_evidence();
    ASSERT_EQ(evidence.size(), 1u);
    EXPECT_EQ(evidence[0].numbers.calls, 1);
    EXPECT_EQ(site::place_of(evidence[0].row->place).path, "layers.0.q_proj");
    EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  }
  EXPECT_TRUE(at::equal(y.detach(), x.detach().mm(faulted.t())));
  EXPECT_TRUE(at::equal(x.grad(), g.mm(faulted)));
  EXPECT_TRUE(at::equal(w.grad(), g.t().mm(x.detach()).to(at::kFloat)));
  EXPECT_TRUE(at::equal(w.detach(), master));
  site::forget_parameters();
}

TEST(Tap, SubstitutesInputsSoThatBackwardSeesThem) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_();
  const at::Tensor x = noise_like({8, 32}, at::kFloat).requires_grad_();
  site::register_parameter(w, site::place_id("layers.0.q_proj"));
  at::Tensor faulted = x.detach().clone();
  numeric::apply_(faulted, numeric::parse_rule("quantize(format=mxfp4)", numeric::RuleUse::kOnTensor),
                  numeric::Identity{}, numeric::CallPoint{});
  const at::Tensor g = noise_like({8, 32}, at::kFloat);
  {
    const Armed plan(make_plan({"quantize(format=mxfp4) @ operator=matmul, surface=input"}));
    x.mm(w.t()).backward(g);
    double calls = 0;
    for (const auto& evidence : plan->read_evidence()) calls += evidence.numbers.calls;
    EXPECT_EQ(calls, 1);  // above autograd or below, never both
  }
  EXPECT_TRUE(at::equal(w.grad(), g.t().mm(faulted)));
  EXPECT_TRUE(at::equal(x.grad(), g.mm(w.detach())));
  const at::InferenceMode inference;
  const Armed plan(make_plan({"quantize(format=mxfp4) @ operator=matmul, surface=input"}));
  const at::Tensor y = x.mm(w.t());
  disarm();
  EXPECT_TRUE(at::equal(y, faulted.mm(w.t())));
  site::forget_parameters();
}

TEST(Tap, NoticesAWeightThatChangedBehindItsBack) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat), x = noise_like({8, 32}, at::kFloat);
  site::register_parameter(w, site::place_id("layers.0.q_proj"));
  const Armed plan(make_plan({"quantize(format=mxfp4) @ operator=matmul, surface=weight"}));
  (void)x.mm(w);
  EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  w.mutable_data_ptr<float>()[5] += 1;
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kWeightChanged);
  EXPECT_EQ(verdict.complaints[0].place, "layers.0.q_proj");
  plan->weights().new_epoch(*plan);
  (void)x.mm(w);
  EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  const at::Tensor before = x.mm(w);
  w.mul_(2);  // autograd's version tells; mxfp4 scales exactly with powers of two
  EXPECT_TRUE(at::equal(x.mm(w), before * 2));
  site::forget_parameters();
}

// Lesson 2: a strength that was printed and never applied. The realised strength follows the schedule, step by step.

}  // namespace substitution_test
}  // namespace faultline::tap
