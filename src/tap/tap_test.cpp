// The operator tap on a CPU: it acts where asked, nowhere else, repeats with its seed, and refuses what it cannot
// prove.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <functional>
#include <latch>
#include <nlohmann/json.hpp>
#include <thread>

#include "numeric/apply.h"
#include "site/forward.h"
#include "site/routing.h"
#include "tap/boundary.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"
#include "tap/report.h"
#include "tap/substitution.h"

namespace faultline {
namespace {

Rule rule(const std::string& text) { return parse_rule(text, RuleUse::kInPlan); }

std::shared_ptr<Plan> make_plan(const std::vector<std::string>& texts, uint64_t seed = 1) {
  std::vector<Rule> rules;
  for (const std::string& text : texts) rules.push_back(rule(text));
  for (std::size_t i = 0; i < rules.size(); ++i) rules[i].name += std::to_string(i);
  PlanSettings settings;
  settings.seed = seed;
  return std::make_shared<Plan>(std::move(rules), settings);
}

class Armed {
 public:
  explicit Armed(std::shared_ptr<Plan> plan) : plan_(std::move(plan)) { arm(plan_); }
  ~Armed() { disarm(); }
  Plan* operator->() const { return plan_.get(); }
  Plan& operator*() const { return *plan_; }

 private:
  std::shared_ptr<Plan> plan_;
};

const std::string kNoise = "relative_gaussian(strength=0.05) @ operator=matmul";

at::Tensor noise_like(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
  at::Generator generator = at::detail::createCPUGenerator(11);
  return at::randn(sizes, generator, at::kFloat).to(type);
}

TEST(Tap, ActsOnFunctionalInPlaceAndOutForms) {
  const at::Tensor a = noise_like({64, 64}), b = noise_like({64, 64}), clean = a.mm(b);
  const Armed plan(make_plan({kNoise}));
  EXPECT_FALSE(at::equal(a.mm(b), clean));
  at::Tensor out = at::empty_like(clean);
  at::mm_out(out, a, b);
  EXPECT_FALSE(at::equal(out, clean));
  at::Tensor sum = at::zeros_like(clean);
  sum.addmm_(a, b);
  EXPECT_FALSE(at::equal(sum, clean));
  at::Tensor batch = at::bmm(a.unsqueeze(0), b.unsqueeze(0));
  EXPECT_FALSE(at::equal(batch[0], clean));
  double calls = 0;
  for (const auto& evidence : plan->read_evidence()) calls += evidence.numbers.calls;
  EXPECT_EQ(calls, 4);
}

TEST(Tap, LeavesArgumentsAndOtherOperatorsAsTheyAre) {
  const at::Tensor a = noise_like({32, 32}), b = noise_like({32, 32});
  const at::Tensor a_before = a.clone(), b_before = b.clone(), silu = at::silu(a), sum = a + b;
  const Armed plan(make_plan({kNoise}));
  (void)a.mm(b);
  EXPECT_TRUE(at::equal(a, a_before));
  EXPECT_TRUE(at::equal(b, b_before));
  EXPECT_TRUE(at::equal(at::silu(a), silu));
  EXPECT_TRUE(at::equal(a + b, sum));
}

TEST(Tap, RestoresEveryBitWhenDisarmedAndWhenUnwrapped) {
  const at::Tensor a = noise_like({32, 32}), b = noise_like({32, 32}), clean = a.mm(b);
  {
    const Armed plan(make_plan({kNoise}));
  }
  EXPECT_TRUE(at::equal(a.mm(b), clean));
  unwrap_all();
  EXPECT_TRUE(wrapped_operators().empty());
  EXPECT_TRUE(at::equal(a.mm(b), clean));
}

TEST(Tap, RepeatsWithItsSeedAndDiffersWithAnother) {
  const at::Tensor a = noise_like({32, 32}), b = noise_like({32, 32});
  const auto run = [&](uint64_t seed) {
    const Armed plan(make_plan({kNoise}, seed));
    return std::pair(a.mm(b), a.mm(b));
  };
  const auto first = run(1), again = run(1), other = run(2);
  EXPECT_TRUE(at::equal(first.first, again.first));
  EXPECT_TRUE(at::equal(first.second, again.second));
  EXPECT_FALSE(at::equal(first.first, first.second));  // each call draws anew
  EXPECT_FALSE(at::equal(first.first, other.first));
}

TEST(Tap, StartsItsCallNumbersAgainWithEachStep) {
  const at::Tensor a = noise_like({32, 32}), b = noise_like({32, 32});
  const Armed plan(make_plan({kNoise}));
  plan->begin_step(3);
  const at::Tensor first = a.mm(b);
  (void)a.mm(b);
  plan->begin_step(3);
  EXPECT_TRUE(at::equal(a.mm(b), first));
  plan->begin_step(4);
  EXPECT_FALSE(at::equal(a.mm(b), first));
}

TEST(Tap, LetsOnlyTheOutermostMatchingCallAct) {
  const at::Tensor a = noise_like({64, 64}), x = noise_like({64});
  const Armed plan(make_plan({kNoise}));
  (void)a.mv(x);  // calls addmv_ inside
  double calls = 0;
  for (const auto& evidence : plan->read_evidence()) calls += evidence.numbers.calls;
  EXPECT_EQ(calls, 1);
}

TEST(Tap, AppliesTwoRulesOfOneSiteInOrder) {
  const at::Tensor a = noise_like({64, 64}), b = noise_like({64, 64});
  const Armed plan(
      make_plan({"zero() @ operator=aten::mm", "offset(strength=1.0, scale=absolute) @ operator=aten::mm"}));
  EXPECT_TRUE(at::equal(a.mm(b), at::ones({64, 64}, at::kBFloat16)));
}

TEST(Tap, FaultsResultsThatAreNotContiguous) {
  const at::Tensor a = noise_like({64, 32}), b = noise_like({32, 48});
  const at::Tensor clean = a.mm(b);
  at::Tensor out = at::zeros({48, 64}, at::kBFloat16).t();
  const Armed plan(make_plan({"gain(strength=1.0) @ operator=matmul"}));
  at::mm_out(out, a, b);
  EXPECT_TRUE(at::equal(out, clean * 2));
}

TEST(Tap, ReachesBackwardAndKnowsItsLayer) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_();
  const at::Tensor x = noise_like({8, 32}, at::kFloat).requires_grad_();
  const Armed plan(make_plan({kNoise}));
  at::Tensor y;
  {
    const Scope outer(place_id("layers.0.mlp"));
    y = x.mm(w);
  }
  {
    const Scope outer(place_id("layers.1.mlp"));
    y = y.mm(w);
  }
  y.sum().backward();
  int64_t backward = 0;
  for (const auto& [row, numbers] : plan->read_evidence()) {
    EXPECT_NE(row->place, kNowhere);
    if (row->phase != Phase::kActorBackward) continue;
    backward += static_cast<int64_t>(numbers.calls);
    EXPECT_EQ(numbers.calls, 2);
  }
  EXPECT_EQ(backward, 4);
}

TEST(Tap, ActsInTheChosenLayersAndPhasesOnly) {
  const at::Tensor a = noise_like({32, 32}), b = noise_like({32, 32}), clean = a.mm(b);
  const Armed plan(make_plan(
      {"{name: n, where: {operator: matmul, layer: 2}, what: {kind: zero}, phases: {rollout: true, eval: clean}}"}));
  const auto in_layer = [&](const char* path) {
    const Scope scope(place_id(path));
    return a.mm(b);
  };
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(in_layer("layers.1.mlp"), clean));
  EXPECT_TRUE(at::equal(a.mm(b), clean));  // unattributed: not layer 2
  EXPECT_EQ(in_layer("layers.2.mlp").count_nonzero().item<int64_t>(), 0);
  set_phase(Phase::kEval);
  EXPECT_TRUE(at::equal(in_layer("layers.2.mlp"), clean));
  set_phase({});
}

TEST(Tap, FailsARunWhoseFaultNeverFired) {
  const Armed plan(make_plan({kNoise}));
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_NE(verdict.complaints[0].find("never fired"), std::string::npos);
}

TEST(Tap, FailsARunWhoseCallsAreNotTheCensusTimesTheForwards) {
  const at::Tensor a = noise_like({64, 64}), b = noise_like({64, 64});
  const auto plan = make_plan({kNoise});
  begin_census();
  (void)a.mm(b);
  const Census census = end_census();
  const Armed armed(plan);
  for (int i = 0; i < 3; ++i) armed->count_forwards(Phase::kActorForward, ForwardKind::kWhole, 1), (void)a.mm(b);
  EXPECT_TRUE(judge(*armed, {{ForwardKind::kWhole, census}}).complaints.empty());
  (void)a.mm(b);
  ASSERT_FALSE(judge(*armed, {{ForwardKind::kWhole, census}}).complaints.empty());
}

// A model whose prefill multiplies twice and whose decoding once; the loss adds one where gradients are wanted.
void run_forward(ForwardKind kind, const at::Tensor& a) {
  const ForwardScope root(place_id("model"), kind);
  (void)a.mm(a);
  if (kind == ForwardKind::kPrefill) (void)a.mm(a);
}

TEST(Counts, HoldEachKindOfForwardAgainstItsOwnCensus) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = noise_like({64, 64});
  begin_census();
  run_forward(ForwardKind::kPrefill, a);
  for (int i = 0; i < 3; ++i) run_forward(ForwardKind::kDecode, a);
  const Censuses censuses = end_census_by_kind();
  ASSERT_EQ(censuses.size(), 2u);
  EXPECT_EQ(censuses.at(ForwardKind::kDecode).at(0).calls, 3);
  EXPECT_EQ(censuses.at(ForwardKind::kDecode).at(0).forwards, 3);
  const Armed plan(make_plan({kNoise}));
  for (int i = 0; i < 2; ++i) run_forward(ForwardKind::kPrefill, a);
  for (int i = 0; i < 7; ++i) run_forward(ForwardKind::kDecode, a);
  EXPECT_TRUE(judge(*plan, censuses).complaints.empty());
  run_forward(ForwardKind::kWhole, a);
  const Verdict verdict = judge(*plan, censuses);
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_NE(verdict.complaints[0].find("1 whole forwards ran in rollout, and the census has none of that kind"),
            std::string::npos)
      << verdict.complaints[0];
}

TEST(Counts, ExpectABackwardOfForwardsWithGradientsOnly) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_(), x = noise_like({8, 32}, at::kFloat);
  const auto forward = [&] {
    const ForwardScope root(place_id("model"));
    return x.mm(w);
  };
  begin_census();
  forward().sum().backward();
  const Censuses censuses = end_census_by_kind();
  set_phase(Phase::kActorForward);
  const Armed plan(make_plan({kNoise}));
  forward().sum().backward();
  {
    const at::NoGradGuard no_grad;
    (void)forward();
  }
  EXPECT_TRUE(judge(*plan, censuses).complaints.empty());
  (void)forward();  // its backward never comes
  const Verdict verdict = judge(*plan, censuses);
  set_phase({});
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_NE(verdict.complaints[0].find("1 calls in actor_backward where 2 forwards make 2"), std::string::npos)
      << verdict.complaints[0];
}

TEST(Counts, FollowWhatTheRouterChose) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = noise_like({64, 64});
  const auto forward = [&](const std::vector<int64_t>& chosen, std::size_t runs) {
    const ForwardScope root(place_id("model"));
    const Scope mlp(place_id("model.layers.0.mlp"));
    tell_routing(place_id("model.layers.0.mlp.experts"), at::tensor(chosen), 8);
    for (std::size_t i = 0; i < runs; ++i) {
      const Scope expert(place_id("model.layers.0.mlp.experts." + std::to_string(chosen[i])));
      (void)a.mm(a);
      (void)a.mm(a);
    }
  };
  begin_census();
  forward({0, 1}, 2);
  const Censuses censuses = end_census_by_kind();
  const Armed plan(make_plan({kNoise}));
  forward({3, 1, 5, 7}, 4);
  EXPECT_TRUE(judge(*plan, censuses).complaints.empty());
  forward({2, 4, 6}, 2);  // expert 6 is left out
  const Verdict verdict = judge(*plan, censuses);
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_NE(verdict.complaints[0].find("12 calls in rollout where 2 forwards and 7 routed calls make 14: 0 at "
                                       "model.layers.0.mlp.experts.6 instead of 2"),
            std::string::npos)
      << verdict.complaints[0];
}

TEST(Tap, RefusesPlansThatCannotWork) {
  EXPECT_THROW(arm(make_plan({"zero() @ operator=aten::adm*"})), UsageError);
  EXPECT_THROW(arm(make_plan({"zero() @ operator=aten::linear"})), UsageError);  // dissolves
  EXPECT_THROW(make_plan({"zero() @ operator=matmul, surface=gradient"}), UsageError);
  EXPECT_THROW(make_plan({"bitflip(rate=0.1, rule.schedule={kind: constant}) @ operator=matmul"}), Error);
  EXPECT_EQ(active_plan(), nullptr);
  const Armed plan(make_plan({kNoise}));
  EXPECT_THROW(arm(make_plan({kNoise})), UsageError);
}

TEST(Tap, RefusesAFaultThatTheDtypeCannotShow) {
  const at::Tensor a = noise_like({32, 32}), b = noise_like({32, 32});
  const Armed plan(make_plan({"relative_gaussian(strength=1e-5) @ operator=matmul"}));
  EXPECT_THROW((void)a.mm(b), c10::Error);
}

TEST(Tap, LeavesIntegersAloneAndSaysSo) {
  const at::Tensor a = at::ones({8, 8}, at::kInt);
  const Armed plan(make_plan({kNoise}));
  (void)a.mm(a);
  const Verdict verdict = judge(*plan, {});
  ASSERT_FALSE(verdict.complaints.empty());
  EXPECT_NE(verdict.complaints[0].find("cannot fault Strided Int"), std::string::npos) << verdict.complaints[0];
}

TEST(Tap, LeavesSparseResultsAloneAndSaysSo) {
  const at::Tensor dense = at::ones({8, 8}), sparse = dense.to_sparse();
  const at::Tensor clean = sparse.mm(dense);
  {
    const Armed plan(make_plan({"gain(strength=1.0) @ operator=aten::mm"}));
    EXPECT_TRUE(at::equal(sparse.mm(dense), clean * 2));  // a dense result of a sparse product
    EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  }
  const Armed plan(make_plan({"gain(strength=1.0) @ operator=aten::mm"}));
  EXPECT_TRUE(at::equal(sparse.mm(sparse).to_dense(), clean));
  const Verdict verdict = judge(*plan, {});
  ASSERT_FALSE(verdict.complaints.empty());
  EXPECT_NE(verdict.complaints[0].find("cannot fault Sparse Float tensors"), std::string::npos)
      << verdict.complaints[0];
}

TEST(Tap, CountsCallsOfManyThreads) {
  const at::Tensor a = noise_like({64, 64}), b = noise_like({64, 64});
  const Armed plan(make_plan({kNoise}));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) (void)a.mm(b);
    });
  }
  for (std::thread& thread : threads) thread.join();
  double calls = 0;
  for (const auto& evidence : plan->read_evidence()) calls += evidence.numbers.calls;
  EXPECT_EQ(calls, 200);
}

TEST(Tap, SubstitutesWeightsInForwardAndBackwardAndKeepsTheMaster) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_();
  const at::Tensor x = noise_like({8, 32}, at::kFloat).requires_grad_();
  register_parameter(w, place_id("layers.0.q_proj"));
  const at::Tensor master = w.detach().clone();
  const at::Tensor faulted = w.detach().clone();
  apply_(faulted, parse_rule("quantize(format=mxfp4)", RuleUse::kOnTensor), Identity{}, CallPoint{});
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
  forget_parameters();
}

// Autocast's way: the product reads a copy of the weight in another dtype, and so does its backward.
TEST(Tap, KnowsAWeightByTheCopyThatACastMadeOfIt) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_();
  const at::Tensor x = noise_like({8, 32}).requires_grad_(), g = noise_like({8, 32});
  register_parameter(w, place_id("layers.0.q_proj"));
  const at::Tensor master = w.detach().clone(), faulted = w.detach().to(at::kBFloat16);
  apply_(faulted, parse_rule("quantize(format=mxfp4)", RuleUse::kOnTensor), Identity{}, CallPoint{});
  at::Tensor y;
  {
    const Armed plan(make_plan({"quantize(format=mxfp4) @ operator=matmul, surface=weight"}));
    y = x.mm(w.to(at::kBFloat16).t());
    y.backward(g);
    (void)x.detach().mm(x.detach().to(at::kFloat).to(at::kBFloat16).t());  // a copy of something else
    const auto evidence = plan->read_evidence();
    ASSERT_EQ(evidence.size(), 1u);
    EXPECT_EQ(evidence[0].numbers.calls, 1);
    EXPECT_EQ(place_of(evidence[0].row->place).path, "layers.0.q_proj");
    EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  }
  EXPECT_TRUE(at::equal(y.detach(), x.detach().mm(faulted.t())));
  EXPECT_TRUE(at::equal(x.grad(), g.mm(faulted)));
  EXPECT_TRUE(at::equal(w.grad(), g.t().mm(x.detach()).to(at::kFloat)));
  EXPECT_TRUE(at::equal(w.detach(), master));
  forget_parameters();
}

TEST(Tap, SubstitutesInputsSoThatBackwardSeesThem) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_();
  const at::Tensor x = noise_like({8, 32}, at::kFloat).requires_grad_();
  register_parameter(w, place_id("layers.0.q_proj"));
  at::Tensor faulted = x.detach().clone();
  apply_(faulted, parse_rule("quantize(format=mxfp4)", RuleUse::kOnTensor), Identity{}, CallPoint{});
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
  forget_parameters();
}

TEST(Tap, NoticesAWeightThatChangedBehindItsBack) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat), x = noise_like({8, 32}, at::kFloat);
  register_parameter(w, place_id("layers.0.q_proj"));
  const Armed plan(make_plan({"quantize(format=mxfp4) @ operator=matmul, surface=weight"}));
  (void)x.mm(w);
  EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  w.mutable_data_ptr<float>()[5] += 1;
  ASSERT_EQ(judge(*plan, {}).complaints.size(), 1u);
  plan->weights().new_epoch();
  (void)x.mm(w);
  EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  const at::Tensor before = x.mm(w);
  w.mul_(2);  // autograd's version tells; mxfp4 scales exactly with powers of two
  EXPECT_TRUE(at::equal(x.mm(w), before * 2));
  forget_parameters();
}

// Lesson 2: a strength that was printed and never applied. The realised strength follows the schedule, step by step.
TEST(Tap, AppliesTheStrengthThatTheScheduleGives) {
  const at::Tensor a = noise_like({256, 64}), b = noise_like({64, 256});
  const Rule scheduled = rule(
      "{name: s, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}, schedule: {kind: linear, "
      "sigma_start: 0.2, sigma_end: 0.02}}");
  PlanSettings settings;
  settings.total_steps = 10;
  for (const int64_t step : {0, 5, 9}) {
    const Armed plan(std::make_shared<Plan>(std::vector<Rule>{scheduled}, settings));
    plan->begin_step(step);
    (void)a.mm(b);
    const auto evidence = plan->read_evidence();
    ASSERT_EQ(evidence.size(), 1u);
    EXPECT_NEAR(*evidence[0].numbers.relative_rms, strength_at(*scheduled.schedule, step, 10),
                0.1 * strength_at(*scheduled.schedule, step, 10));
    EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  }
}

// Lesson 7: a filter whose pattern needs a trailing dot. Layer 1 is neither layer 10 nor layer 11.
TEST(Tap, TellsLayerOneFromLayerTen) {
  const Selector where = *rule("zero() @ operator=matmul, layer=1").where;
  const auto means = [&](const char* path) { return rule_means_layer(where, place_of(place_id(path))); };
  EXPECT_TRUE(means("model.layers.1"));
  EXPECT_TRUE(means("model.layers.1.mlp.down_proj"));
  EXPECT_FALSE(means("model.layers.10"));
  EXPECT_FALSE(means("model.layers.11.mlp.down_proj"));
  EXPECT_FALSE(means("lm_head"));
}

// Lesson 10: "all operators" that missed @, mm, addmm and fused attention.
TEST(Tap, ReachesEveryWayToMultiply) {
  const at::Tensor a = noise_like({1, 2, 16, 16}, at::kFloat);
  const std::vector<std::pair<const char*, std::function<at::Tensor()>>> ways = {
      {"matmul", [&] { return at::matmul(a, a); }},
      {"linear", [&] { return at::linear(a, a[0][0]); }},
      {"linear with bias", [&] { return at::linear(a, a[0][0], a[0][0][0]); }},
      {"einsum", [&] { return at::einsum("bhik,bhkj->bhij", {a, a}); }},
      {"tensordot", [&] { return at::tensordot(a, a, {3}, {2}); }},
      {"attention", [&] { return at::scaled_dot_product_attention(a, a, a); }},
      {"inner", [&] { return at::inner(a[0][0], a[0][0]); }},
      {"dot", [&] { return at::dot(a[0][0][0], a[0][0][1]); }},
  };
  for (const auto& [name, run] : ways) {
    const at::Tensor clean = run();
    const Armed plan(make_plan({"gain(strength=0.5) @ operator=matmul", "gain(strength=0.5) @ operator=attention"}));
    EXPECT_FALSE(at::equal(run(), clean)) << name;
  }
}

// Lesson 17: routers perturbed by a generic rule. Only a rule that names the router reaches it.
TEST(Tap, LeavesRoutersToRulesThatNameThem) {
  const at::Tensor a = noise_like({32, 32}), b = noise_like({32, 32}), clean = a.mm(b);
  const Armed plan(make_plan({"zero() @ operator=matmul"}));
  const Scope scope(place_id("model.layers.2.mlp.gate"));
  EXPECT_TRUE(at::equal(a.mm(b), clean));
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_NE(verdict.complaints[0].find("router"), std::string::npos);
}

TEST(Tap, SurvivesAnExceptionInsideAStep) {
  const at::Tensor a = noise_like({32, 32}), b = noise_like({16, 32}), clean = a.mm(a);
  {
    const Armed plan(make_plan({kNoise}));
    EXPECT_THROW((void)a.mm(b), c10::Error);  // shapes do not fit
    EXPECT_FALSE(at::equal(a.mm(a), clean));  // still acts
  }
  EXPECT_TRUE(at::equal(a.mm(a), clean));
}

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

TEST(Boundary, MasksGradientsWhereTheFaultForcedAConstant) {
  const at::Tensor x = at::tensor({-2.0f, -0.1f, 0.0f, 0.1f, 2.0f}).requires_grad_();
  const PlaceId place = place_id("layers.3");
  {
    const Armed plan(make_plan(
        {"{name: d, where: {module: layer_output}, what: {kind: deadzone, threshold: 0.5}, gradient: masked}"}));
    boundary(x, place, Surface::kOutput).sum().backward();
  }
  EXPECT_TRUE(at::equal(x.grad(), at::tensor({1.0f, 0.0f, 0.0f, 0.0f, 1.0f})));
  EXPECT_TRUE(at::equal(x, at::tensor({-2.0f, -0.1f, 0.0f, 0.1f, 2.0f})));  // the caller's tensor is not touched
}

// The form that torch.compile keeps in a graph gives the same values and gradients as the one that models call.
TEST(Boundary, IsTheSameInItsTracedForm) {
  const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("faultline::traced_boundary", "")
          .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, int64_t, c10::string_view, bool, bool)>();
  const PlaceId place = place_id("layers.3");
  const at::Tensor plain = noise_like({64}, at::kFloat).requires_grad_();
  const at::Tensor traced = plain.detach().clone().requires_grad_();
  const std::vector<std::string> rules = {
      "{name: d, where: {module: layer_output}, what: {kind: deadzone, threshold: 0.5}, gradient: masked}",
      "{name: n, where: {module: layer_output}, what: {kind: relative_gaussian, strength: 0.1}}",
      "{name: g, where: {module: layer, surface: gradient}, what: {kind: gain, strength: 1.0}}"};
  at::Tensor first, second;
  {
    const Armed plan(make_plan(rules));
    const ForwardScope root(place_id("model"));  // says the phase: below autograd gradients are off
    first = boundary(plain, place, Surface::kOutput);
    first.square().sum().backward();
  }
  {
    const Armed plan(make_plan(rules));
    const ForwardScope root(place_id("model"));
    second = std::get<0>(op.call(traced, place, "output", true, true));
    second.square().sum().backward();
    EXPECT_THROW((void)op.call(traced, place, "output", false, true), c10::Error);  // traced for rules that do not mask
  }
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_TRUE(at::equal(plain.grad(), traced.grad()));
  EXPECT_GT(traced.grad().eq(0).sum().item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(std::get<0>(op.call(traced, place, "output", true, true)), traced));  // no plan: it passes
  const at::Tensor meta = at::empty({3, 5}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  EXPECT_EQ(std::get<0>(op.call(meta, place, "output", false, false)).sizes(), meta.sizes());
}

TEST(Boundary, ReturnsTheTensorItselfWhereNoRuleWantsIt) {
  const at::Tensor x = at::ones({4});
  EXPECT_TRUE(boundary(x, place_id("layers.3"), Surface::kOutput).is_same(x));
  const Armed plan(make_plan({"zero() @ module=layer_output, layer=7"}));
  EXPECT_TRUE(boundary(x, place_id("layers.3"), Surface::kInput).is_same(x));
  EXPECT_TRUE(boundary(x, place_id("layers.3"), Surface::kOutput).is_same(x));
}

TEST(Boundary, FaultsGradientsWhereAskedAndValuesNot) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  const Armed plan(
      make_plan({"{name: g, where: {module: layer, surface: gradient}, what: {kind: gain, strength: 1.0}}"}));
  const at::Tensor y = boundary(x, place_id("layers.3"), Surface::kOutput);
  EXPECT_TRUE(at::equal(y, x));
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 2.0)));
}

TEST(Place, ReadsLayerAndRoleOffAPath) {
  EXPECT_EQ(layer_of_path("model.layers.15.mlp.gate_proj"), 15);
  EXPECT_EQ(layer_of_path("layers.3"), 3);
  EXPECT_EQ(layer_of_path("lm_head"), -1);
  EXPECT_EQ(role_of_path("model.layers.15"), "layer");
  EXPECT_EQ(role_of_path("model.layers.15.input_layernorm"), "rmsnorm");
  EXPECT_EQ(role_of_path("model.norm"), "rmsnorm");
  EXPECT_EQ(role_of_path("model.layers.1.mlp.gate"), "router");
  EXPECT_EQ(role_of_path("model.layers.1.mlp.gate_proj"), "gate_proj");  // no router: a dense model has one
  EXPECT_EQ(role_of_path("model.layers.1.mlp.experts.7"), "expert");
  EXPECT_EQ(role_of_path("model.layers.1.q_proj.lora_A.default"), "lora");
  EXPECT_EQ(role_of_path("model.layers.1.q_proj.base_layer"), "q_proj");
}

TEST(Operators, ResolveNamesFamiliesAndGlobs) {
  const std::vector<c10::DispatchKey> keys = {c10::DispatchKey::CPU};
  const auto names = [&](const std::string& pattern) {
    std::set<std::string> found;
    for (const Kernel& kernel : resolve_operators(pattern, {}, keys))
      found.insert(full_name(kernel.op.operator_name()));
    return found;
  };
  const auto matmul = names("matmul");
  for (const char* name : {"aten::mm", "aten::mm.out", "aten::addmm", "aten::addmm.out", "aten::addmm_", "aten::bmm",
                           "aten::bmm.out", "aten::baddbmm", "aten::baddbmm.out", "aten::baddbmm_", "aten::mv",
                           "aten::addmv", "aten::addmv_", "aten::dot", "faultline::few_rows_linear"})
    EXPECT_TRUE(matmul.contains(name)) << name;
  EXPECT_EQ(names("aten::mm.out"), std::set<std::string>{"aten::mm.out"});
  EXPECT_TRUE(names("aten::*mm").contains("aten::addmm"));
  EXPECT_FALSE(names("every").contains("aten::copy_"));
  EXPECT_TRUE(names("every").contains("aten::add.Tensor"));
  EXPECT_TRUE(names("every").contains("faultline::swiglu"));  // the model's; the lab's own and sampling are left out
  for (const char* name : {"faultline::inject_", "faultline::apply_", "faultline::sample", "faultline::store_kv_"})
    EXPECT_FALSE(names("every").contains(name)) << name;
  try {
    (void)names("aten::adm*m");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean"), std::string::npos) << error.what();
  }
}

TEST(Operators, EveryFamilyMeansAnOperator) {
  const std::vector<c10::DispatchKey> keys = {c10::DispatchKey::CPU};
  for (const Family& family : families())
    EXPECT_FALSE(resolve_operators(std::string(family.name), {}, keys).empty()) << family.name;
}

// An operator of somebody else, in their namespace: returns nothing and writes its first argument.
void custom_norm(at::Tensor& out, const at::Tensor& x) { out.copy_(x * 2); }
// And one that stays inside until it is told to leave.
struct Doors {
  std::latch inside{1}, leave{1};
};
Doors* doors = nullptr;
at::Tensor linger(const at::Tensor& x) {
  doors->inside.count_down();
  doors->leave.wait();
  return x.clone();
}
TORCH_LIBRARY(faultline_test_client, m) {
  m.def("norm(Tensor(a!) out, Tensor x) -> ()");
  m.def("linger(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(faultline_test_client, CPU, m) {
  m.impl("norm", custom_norm);
  m.impl("linger", linger);
}

TEST(Tap, RefusesToWrapNewOperatorsWhileOthersRun) {
  Doors both;
  doors = &both;
  {
    const Armed plan(make_plan({"zero() @ operator=faultline_test_client::linger"}));
  }
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("faultline_test_client::linger", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  std::thread thread([&] { (void)op.call(at::ones({4})); });
  both.inside.wait();
  const auto other = make_plan({"zero() @ operator=aten::sinh"});
  EXPECT_THROW(arm(other), UsageError);
  EXPECT_THROW(unwrap_all(), UsageError);
  EXPECT_EQ(active_plan(), nullptr);
  arm(make_plan({"zero() @ operator=faultline_test_client::linger"}));  // wrapped already: nothing to register
  disarm();
  both.leave.count_down();
  thread.join();
  const Armed plan(other);
  EXPECT_EQ(at::sinh(at::ones({4})).count_nonzero().item<int64_t>(), 0);
}

TEST(Tap, ReachesCustomNamespacesThatReturnNothing) {
  const at::Tensor x = at::ones({16});
  at::Tensor out = at::zeros({16});
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("faultline_test_client::norm", "")
                      .typed<void(at::Tensor&, const at::Tensor&)>();
  const Armed plan(make_plan({"gain(strength=1.0) @ operator=faultline_test_client::*"}));
  op.call(out, x);
  EXPECT_TRUE(at::equal(out, at::full({16}, 4.0)));
}

}  // namespace
}  // namespace faultline
