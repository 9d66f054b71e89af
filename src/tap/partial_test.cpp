// Silence, rehearsals and partial reach on a CPU: what an engine runs for itself is neither faulted nor counted, and a
// site that ran without its fault while its siblings had theirs is found.
#include "tap/partial.h"
#include "base/json.h"

#include "site/entered.h"
#include "site/forward.h"
#include "tap/report.h"
#include "tap/testing.h"

namespace faultline::tap {
namespace partial_test {

const at::Tensor kA = noise_like({32, 32}), kB = noise_like({32, 32});

void multiply_at(const char* path) {
  const site::Scope scope(site::place_id(path));
  (void)kA.mm(kB);
}

std::vector<ComplaintCode> codes(const std::vector<Complaint>& complaints) {
  std::vector<ComplaintCode> all;
  for (const Complaint& complaint : complaints) all.push_back(complaint.code);
  return all;
}
using Codes = std::vector<ComplaintCode>;

// The modules a.x and a.y multiply; the phase is rollout.
class Partial : public testing::Test {
 protected:
  void SetUp() override {
    site::set_phase(site::Phase::kRollout);
    for (const char* path : {"a.x", "a.y"}) site::know_module(site::place_id(path), {1});
  }
  void TearDown() override {
    site::forget_modules();
    site::set_phase({});
  }
};

TEST_F(Partial, SilencedCallsAreNeitherFaultedNorCounted) {
  const at::Tensor clean = kA.mm(kB);
  const Armed plan(make_plan({kNoise}));
  plan->silence("warm-up");
  EXPECT_TRUE(at::equal(kA.mm(kB), clean));
  plan->silence("autotuning");
  EXPECT_TRUE(at::equal(kA.mm(kB), clean));
  plan->end_silence();
  EXPECT_TRUE(at::equal(kA.mm(kB), clean));  // silences nest
  plan->end_silence();
  EXPECT_FALSE(at::equal(kA.mm(kB), clean));
  const Verdict verdict = judge(*plan, {});
  EXPECT_EQ(codes(verdict.complaints), Codes{});
  ASSERT_EQ(verdict.evidence.size(), 1u);
  EXPECT_EQ(verdict.evidence[0].numbers.calls, 1);
  EXPECT_EQ(plan->calls_apart(), (std::map<std::string, int64_t>{{"autotuning", 1}, {"warm-up", 2}}));
}

TEST_F(Partial, ARunOfSilencedCallsAloneNeverFired) {
  const Armed plan(make_plan({kNoise}));
  plan->silence("autotuning");
  multiply_at("a.x");
  plan->end_silence();
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{ComplaintCode::kNeverFired});
}

TEST_F(Partial, TheNoiseAfterASilenceIsTheNoiseWithoutIt) {
  const auto noisy = [](bool silenced_first) {
    const Armed plan(make_plan({kNoise}));
    if (silenced_first) {
      plan->silence("warm-up");
      (void)kA.mm(kB);
      plan->end_silence();
    }
    return kA.mm(kB);
  };
  EXPECT_TRUE(at::equal(noisy(true), noisy(false)));
}

TEST_F(Partial, RehearsedCallsTimesForwardsMustBeCounted) {
  const Armed plan(make_plan({kNoise}));
  site::forget_modules();  // an engine whose modules nobody enters
  plan->silence("warm-up");
  ASSERT_TRUE(plan->rehearse(site::ForwardKind::kBody));
  multiply_at("a.x");
  plan->silence("autotuning");
  multiply_at("a.x");  // no part of the forward
  plan->end_silence();
  multiply_at("a.y");
  plan->rehearse({});
  EXPECT_FALSE(plan->rehearse(site::ForwardKind::kBody));  // once is enough
  plan->end_silence();
  for (int i = 0; i < 2; ++i) {
    plan->count_forwards(site::Phase::kRollout, site::ForwardKind::kBody, 1);
    multiply_at("a.x");
    multiply_at("a.y");
  }
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{});
  plan->count_forwards(site::Phase::kRollout, site::ForwardKind::kBody,
                       1);  // a forward whose graph has no fault at a.y
  multiply_at("a.x");
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(codes(verdict.complaints), Codes{ComplaintCode::kPartial});
  EXPECT_EQ(verdict.complaints[0].place, "a.y");
  multiply_at("a.y");
  multiply_at("a.y");  // and one that no forward made
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{ComplaintCode::kCounts});
}

TEST_F(Partial, ForgottenEvidenceProvesNothing) {
  const Armed plan(make_plan({kNoise}));
  multiply_at("a.x");
  plan->forget_evidence();
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{ComplaintCode::kNeverFired});
}

TEST_F(Partial, AModuleThatRanWithoutItsProductIsNamed) {
  const Armed plan(make_plan({kNoise}));
  multiply_at("a.x");
  {
    const site::Scope scope(site::place_id("a.y"));  // a kernel of somebody else's computes here
  }
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(codes(verdict.complaints), Codes{ComplaintCode::kPartial});
  EXPECT_EQ(verdict.complaints[0].place, "a.y");
  EXPECT_EQ(verdict.complaints[0].rule, "relative_gaussian0");
}

TEST_F(Partial, AModuleThatDidNotRunIsNot) {
  const Armed plan(make_plan({kNoise}));
  multiply_at("a.x");
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{});
}

TEST_F(Partial, AModuleInsideOneThatShowsNothingOfItsInsideIsTakenToHaveRun) {
  {
    const Armed plan(make_plan({kNoise}));
    multiply_at("a");  // compiled; one nameless call may be that of a.x or of a.y, not of both
    (void)kA.mm(kB);   // and one outside of it is neither's
    EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{ComplaintCode::kPartial});
  }
  const Armed plan(make_plan({kNoise}));
  {
    const site::Scope compiled(site::place_id("a"));
    (void)kA.mm(kB);
    (void)kA.mm(kB);
  }
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{});
}

TEST_F(Partial, ProductsOfSomethingElseDoNotStandInForAModulesOwn) {
  const Armed plan(make_plan({kNoise}));
  multiply_at("a.x");
  {
    const site::Scope scope(site::place_id("a.y"));
  }
  for (int i = 0; i < 9; ++i) {
    multiply_at("a");
    (void)kA.mm(kB);
  }
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(codes(verdict.complaints), Codes{ComplaintCode::kPartial});
  EXPECT_EQ(verdict.complaints[0].place, "a.y");
}

TEST_F(Partial, AChildThatStaysSilentWhileItsParentAndASiblingRunIsNamed) {
  const Armed plan(make_plan({kNoise}));
  {
    const site::Scope parent(site::place_id("a"));
    multiply_at("a.x");
  }
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(codes(verdict.complaints), Codes{ComplaintCode::kPartial});
  EXPECT_EQ(verdict.complaints[0].place, "a.y");
}

TEST_F(Partial, AProductBelongsToTheOwnerOfTheWeightThatItReads) {
  const at::Tensor weight = noise_like({32, 32});
  site::register_parameter(weight, site::place_id("a.y"));
  const Armed plan(make_plan({kNoise}));
  {
    const site::Scope parent(site::place_id("a"));
    multiply_at("a.x");
    (void)kA.mm(weight);
  }
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{});
  site::forget_parameters();
}

TEST_F(Partial, EveryWeightOfAModuleIsAProductOfItsOwn) {
  site::know_module(site::place_id("a.x"), {.products = 2});
  const Armed plan(make_plan({kNoise}));
  multiply_at("a.x");
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{ComplaintCode::kPartial});
}

TEST_F(Partial, OneKindOfForwardDoesNotProveAnother) {
  const Armed plan(make_plan({kNoise}));
  for (const site::ForwardKind kind : {site::ForwardKind::kPrefill, site::ForwardKind::kDecode}) {
    const site::ForwardScope forward(site::place_id("a"), kind);
    if (kind == site::ForwardKind::kDecode) continue;  // through code that no tap reaches
    multiply_at("a.x");
    multiply_at("a.y");
  }
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{ComplaintCode::kPartial});
}

TEST_F(Partial, CompiledCodeRunsWhateverElseIsSeenBesideIt) {
  site::know_module(site::place_id("b.c.y"), {.products = 1});
  const auto verdict = [] {
    const Armed plan(make_plan({kNoise}));
    const site::Scope compiled(site::place_id("b"));
    multiply_at("b.x");  // a part that is not compiled
    return codes(judge(*plan, {}).complaints);
  };
  EXPECT_EQ(verdict(), Codes{});  // it simply did not run
  site::know_module(site::place_id("b.c.y"), {.products = 1, .is_compiled = true});
  EXPECT_EQ(verdict(), Codes{ComplaintCode::kPartial});
}

TEST_F(Partial, WhereNobodySawAForwardTheSiblingsShowWhatIsMissing) {
  const at::Tensor weight = noise_like({32, 32});
  site::register_parameter(weight, site::place_id("a.x"));
  const Armed plan(make_plan({kNoise}));
  (void)kA.mm(weight);
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(codes(verdict.complaints), Codes{ComplaintCode::kPartial});
  EXPECT_EQ(verdict.complaints[0].place, "a.y");
  site::forget_parameters();
}

TEST_F(Partial, ABackwardThatHasNoneOfItsProductsIsNamed) {
  site::set_phase(site::Phase::kActorForward);
  const auto judged = [](bool is_trained) {
    site::know_module(site::place_id("a.y"), {.products = 1, .is_trained = is_trained});
    const Armed plan(make_plan({kNoise}));
    at::Tensor x = kA.clone().set_requires_grad(true), y;
    {
      const site::Scope scope(site::place_id("a.x"));
      y = x.mm(kB);
    }
    {
      const site::Scope scope(site::place_id("a.y"));
      y = y + kA.mm(kB);  // forward; a backward of its own would be past the taps
    }
    y.sum().backward();
    return codes(judge(*plan, {}).complaints);
  };
  site::know_module(site::place_id("a.x"), {.products = 1, .is_trained = true});
  EXPECT_EQ(judged(false), Codes{});
  EXPECT_EQ(judged(true), Codes{ComplaintCode::kPartial});
}

TEST_F(Partial, AModuleThatAnExceptionEndedOwesNothing) {
  const Armed plan(make_plan({kNoise}));
  multiply_at("a.x");
  site::push_scope(site::place_id("a.y"));
  site::abandon_scope();
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{});
}

TEST_F(Partial, AModuleWhoseBoundaryWasNotPassedIsNamed) {
  site::know_module(site::place_id("a.first_norm"), {});
  site::know_module(site::place_id("a.second_norm"), {});
  const Armed plan(make_plan({"relative_gaussian(strength=0.05) @ module=rmsnorm"}));
  const auto pass = [](const char* path, bool hooked) {
    const site::Scope scope(site::place_id(path));
    if (hooked) (void)site::boundary(kA, site::place_id(path), site::Surface::kInput);
  };
  pass("a.first_norm", true);
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{});
  pass("a.second_norm", false);
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(codes(verdict.complaints), Codes{ComplaintCode::kPartial});
  EXPECT_EQ(verdict.complaints[0].place, "a.second_norm");
}

TEST_F(Partial, AnotherPhaseIsJudgedByItself) {
  const Armed plan(make_plan({kNoise}));
  multiply_at("a.x");
  site::set_phase(site::Phase::kEval);
  {
    const site::Scope scope(site::place_id("a.x"));
  }
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(codes(verdict.complaints), Codes{ComplaintCode::kPartial});
  EXPECT_EQ(verdict.complaints[0].place, "a.x");
}

TEST_F(Partial, WhatTheRecipeAllowsIsSaidFirst) {
  auto rules = std::vector<numeric::Rule>{rule(kNoise)};
  const Node recipe = parse_yaml("seed: 1\nallow_partial: [a.y]\n", "recipe");
  const Armed plan(std::make_shared<Plan>(std::move(rules), recipe::read_plan_spec(recipe).settings));
  multiply_at("a.x");
  {
    const site::Scope scope(site::place_id("a.y"));
  }
  const Verdict verdict = judge(*plan, {});
  EXPECT_EQ(codes(verdict.complaints), Codes{});
  ASSERT_EQ(verdict.allowed.size(), 1u);
  EXPECT_EQ(site::place_of(verdict.allowed[0].place).path, "a.y");
  EXPECT_EQ(to_json(*plan, verdict, {}).begin().key(), "allowed_partial");
  EXPECT_NE(log_lines(*plan, verdict).front().find("NOT FAULTED"), std::string::npos);
}

TEST_F(Partial, ARuleOnOneOperatorPromisesNoOther) {
  const Armed plan(make_plan({"relative_gaussian(strength=0.05) @ operator=aten::mm"}));
  multiply_at("a.x");
  {
    const site::Scope scope(site::place_id("a.y"));
    (void)at::bmm(kA.unsqueeze(0), kB.unsqueeze(0));
  }
  EXPECT_EQ(codes(judge(*plan, {}).complaints), Codes{});
}

}  // namespace partial_test
}  // namespace faultline::tap
