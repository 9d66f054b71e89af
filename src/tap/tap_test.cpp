// The operator tap on a CPU: it acts where asked, nowhere else, repeats with its seed, and refuses what it cannot
// prove.
#include <torch/library.h>

#include <functional>
#include <latch>
#include <thread>

#include "base/json.h"
#include "numeric/apply.h"
#include "site/boundary.h"
#include "site/forward.h"
#include "tap/boundary.h"
#include "tap/operators.h"
#include "tap/report.h"
#include "tap/testing.h"

namespace faultline::tap {
namespace tap_test {

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
    const site::Scope outer(site::place_id("layers.0.mlp"));
    y = x.mm(w);
  }
  {
    const site::Scope outer(site::place_id("layers.1.mlp"));
    y = y.mm(w);
  }
  y.sum().backward();
  int64_t backward = 0;
  for (const auto& [row, numbers] : plan->read_evidence()) {
    EXPECT_NE(row->place, site::kNowhere);
    if (row->phase != site::Phase::kActorBackward) continue;
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
    const site::Scope scope(site::place_id(path));
    return a.mm(b);
  };
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(in_layer("layers.1.mlp"), clean));
  EXPECT_TRUE(at::equal(a.mm(b), clean));  // unattributed: not layer 2
  EXPECT_EQ(in_layer("layers.2.mlp").count_nonzero().item<int64_t>(), 0);
  site::set_phase(site::Phase::kEval);
  EXPECT_TRUE(at::equal(in_layer("layers.2.mlp"), clean));
  site::set_phase({});
}

TEST(Tap, FailsARunWhoseFaultNeverFired) {
  const Armed plan(make_plan({kNoise}));
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kNeverFired);
  EXPECT_EQ(verdict.complaints[0].rule, plan->rules()[0]->rule.name);
}

TEST(Tap, FailsARunWhoseCallsAreNotTheCensusTimesTheForwards) {
  const at::Tensor a = noise_like({64, 64}), b = noise_like({64, 64});
  const auto plan = make_plan({kNoise});
  begin_census();
  (void)a.mm(b);
  const Census census = end_census();
  const Armed armed(plan);
  for (int i = 0; i < 3; ++i)
    armed->count_forwards(site::Phase::kActorForward, site::ForwardKind::kWhole, 1), (void)a.mm(b);
  EXPECT_TRUE(judge(*armed, {{site::ForwardKind::kWhole, census}}).complaints.empty());
  (void)a.mm(b);
  const Verdict verdict = judge(*armed, {{site::ForwardKind::kWhole, census}});
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kCounts);
}

// A model whose prefill multiplies twice and whose decoding once; the loss adds one where gradients are wanted.
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
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kNeverFired);
  EXPECT_NE(verdict.complaints[0].sentence.find("cannot fault Strided Int"), std::string::npos)
      << verdict.complaints[0].sentence;
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
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kNeverFired);
  EXPECT_NE(verdict.complaints[0].sentence.find("cannot fault Sparse Float tensors"), std::string::npos)
      << verdict.complaints[0].sentence;
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

TEST(Tap, AppliesTheStrengthThatTheScheduleGives) {
  const at::Tensor a = noise_like({256, 64}), b = noise_like({64, 256});
  const numeric::Rule scheduled = rule(
      "{name: s, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}, schedule: {kind: linear, "
      "sigma_start: 0.2, sigma_end: 0.02}}");
  const recipe::PlanSettings settings =
      recipe::read_plan_spec(recipe::recipe_of_rules({}, 0), /*total_steps=*/10).settings;
  for (const int64_t step : {0, 5, 9}) {
    const Armed plan(std::make_shared<Plan>(std::vector<numeric::Rule>{scheduled}, settings));
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
  const site::Selector where = *rule("zero() @ operator=matmul, layer=1").where;
  const auto means = [&](const char* path) { return rule_means_layer(where, site::place_of(site::place_id(path))); };
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
  const site::Scope scope(site::place_id("model.layers.2.mlp.gate"));
  EXPECT_TRUE(at::equal(a.mm(b), clean));
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kNeverFired);
  EXPECT_NE(verdict.complaints[0].sentence.find("router"), std::string::npos);
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
struct Latches {
  std::latch inside{1}, leave{1};
};
Latches* doors = nullptr;
at::Tensor wait_inside(const at::Tensor& x) {
  doors->inside.count_down();
  doors->leave.wait();
  return x.clone();
}
TORCH_LIBRARY(faultline_test_client, m) {
  m.def("norm(Tensor(a!) out, Tensor x) -> ()");
  m.def("wait_inside(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(faultline_test_client, CPU, m) {
  m.impl("norm", custom_norm);
  m.impl("wait_inside", wait_inside);
}

TEST(Tap, RefusesToWrapNewOperatorsWhileOthersRun) {
  Latches both;
  doors = &both;
  {
    const Armed plan(make_plan({"zero() @ operator=faultline_test_client::wait_inside"}));
  }
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("faultline_test_client::wait_inside", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  std::thread thread([&] { (void)op.call(at::ones({4})); });
  both.inside.wait();
  const auto other = make_plan({"zero() @ operator=aten::sinh"});
  EXPECT_THROW(arm(other), UsageError);
  EXPECT_THROW(unwrap_all(), UsageError);
  EXPECT_EQ(active_plan(), nullptr);
  arm(make_plan({"zero() @ operator=faultline_test_client::wait_inside"}));  // wrapped already: nothing to register
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

}  // namespace tap_test
}  // namespace faultline::tap
