// Evidence over the parts of a run: what is judged on the sum, and what stays wrong.
#include "lab/run_evidence.h"

#include "tap/testing.h"

namespace faultline::lab {
namespace run_evidence_test {

// The first rule acts in every call; the second waits for a step that this part does not reach.
const std::vector<std::string> kOneWaits = {
    tap::kNoise, "gain(strength=0.5, lifetime.kind=window, lifetime.from=5, lifetime.to=9) @ operator=matmul"};

TEST(RunEvidence, ARuleThatRestsInOnePartIsJudgedOnTheSum) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = tap::noise_like({64, 64});
  const auto part_at = [&](int64_t step, const tap::Armed& plan) {
    plan->begin_step(step);
    (void)a.mm(a);
    return part_evidence(*plan, {});
  };
  Json first;
  {
    const tap::Armed plan(tap::make_plan(kOneWaits));
    first = part_at(0, plan);
    EXPECT_TRUE(first["complaints"].empty()) << first["complaints"].dump();
    const auto missing = missing_evidence(first, *plan);
    ASSERT_EQ(missing.size(), 1u);
    EXPECT_EQ(missing[0].code, ComplaintCode::kAsleep);
    EXPECT_EQ(missing[0].rule, plan->rules()[1]->rule.name);
  }
  const tap::Armed plan(tap::make_plan(kOneWaits));
  const Json second = part_at(5, plan);
  EXPECT_TRUE(missing_evidence(join_evidence(first, second), *plan).empty());
}

TEST(RunEvidence, WhatIsWrongInOnePartStaysWrong) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = tap::noise_like({64, 64});
  tap::begin_census();
  (void)a.mm(a);
  const tap::Censuses censuses = {{site::ForwardKind::kWhole, tap::end_census()}};
  const auto part_of = [&](int64_t forwards, const tap::Armed& plan) {
    plan->count_forwards(site::Phase::kRollout, site::ForwardKind::kWhole, forwards);
    (void)a.mm(a);
    return part_evidence(*plan, censuses);
  };
  Json short_of_one;
  {
    const tap::Armed plan(tap::make_plan({tap::kNoise}));
    short_of_one = part_of(2, plan);
  }
  const tap::Armed plan(tap::make_plan({tap::kNoise}));
  const Json whole = part_of(1, plan);
  EXPECT_TRUE(missing_evidence(whole, *plan).empty());
  const auto missing = missing_evidence(join_evidence(short_of_one, whole), *plan);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].code, ComplaintCode::kCounts);
}

TEST(RunEvidence, APhaseWhereARuleWasToActAndDidNotIsNamed) {
  const tap::Armed plan(tap::make_plan({tap::kNoise}));
  {
    const at::NoGradGuard no_grad;
    (void)tap::noise_like({64, 64}).mm(tap::noise_like({64, 64}));
  }
  plan->count_forwards(site::Phase::kEval, site::ForwardKind::kWhole, 3);
  const auto missing = missing_evidence(part_evidence(*plan, {}), *plan);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].code, ComplaintCode::kCounts);
  EXPECT_EQ(missing[0].place, "eval");
}

TEST(RunEvidence, APlanThatWasNeverArmedHasNone) {
  const auto plan = tap::make_plan({tap::kNoise});
  const auto missing = missing_evidence(Json(), *plan);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].code, ComplaintCode::kNoEvidence);
}

// Checkpoints of before complaints had codes hold sentences.
TEST(RunEvidence, AnOldPartsComplaintIsKept) {
  const tap::Armed plan(tap::make_plan({tap::kNoise}));
  {
    const at::NoGradGuard no_grad;
    (void)tap::noise_like({64, 64}).mm(tap::noise_like({64, 64}));
  }
  Json old = part_evidence(*plan, {});
  old["complaints"] = {"rule 'x' at y: 3 calls were issued in eval, the ledger counted 2"};
  const auto missing = missing_evidence(old, *plan);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].code, ComplaintCode::kUnproven);
}

}  // namespace run_evidence_test
}  // namespace faultline::lab
