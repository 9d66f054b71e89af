// Counts held against the census: by kind of forward, with and without gradients, by what a router chose.
#include "site/boundary.h"
#include "site/forward.h"
#include "tap/report.h"
#include "tap/testing.h"

namespace faultline::tap {
namespace counts_test {

void run_forward(site::ForwardKind kind, const at::Tensor& a) {
  const site::ForwardScope root(site::place_id("model"), kind);
  (void)a.mm(a);
  if (kind == site::ForwardKind::kPrefill) (void)a.mm(a);
}

TEST(Counts, HoldEachKindOfForwardAgainstItsOwnCensus) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = noise_like({64, 64});
  begin_census();
  run_forward(site::ForwardKind::kPrefill, a);
  for (int i = 0; i < 3; ++i) run_forward(site::ForwardKind::kDecode, a);
  const Censuses censuses = end_census_by_kind();
  ASSERT_EQ(censuses.size(), 2u);
  EXPECT_EQ(censuses.at(site::ForwardKind::kDecode).at(0).calls, 3);
  EXPECT_EQ(censuses.at(site::ForwardKind::kDecode).at(0).forwards, 3);
  const Armed plan(make_plan({kNoise}));
  for (int i = 0; i < 2; ++i) run_forward(site::ForwardKind::kPrefill, a);
  for (int i = 0; i < 7; ++i) run_forward(site::ForwardKind::kDecode, a);
  EXPECT_TRUE(judge(*plan, censuses).complaints.empty());
  run_forward(site::ForwardKind::kWhole, a);
  const Verdict verdict = judge(*plan, censuses);
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kUnpredicted) << verdict.complaints[0].sentence;
}

TEST(Counts, ExpectABackwardOfForwardsWithGradientsOnly) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat).requires_grad_(), x = noise_like({8, 32}, at::kFloat);
  const auto forward = [&] {
    const site::ForwardScope root(site::place_id("model"));
    return x.mm(w);
  };
  begin_census();
  forward().sum().backward();
  const Censuses censuses = end_census_by_kind();
  site::set_phase(site::Phase::kActorForward);
  const Armed plan(make_plan({kNoise}));
  forward().sum().backward();
  {
    const at::NoGradGuard no_grad;
    (void)forward();
  }
  EXPECT_TRUE(judge(*plan, censuses).complaints.empty());
  (void)forward();  // its backward never comes
  const Verdict verdict = judge(*plan, censuses);
  site::set_phase({});
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kCounts);
  EXPECT_NE(verdict.complaints[0].sentence.find("1 calls in actor_backward where 2 forwards make 2"), std::string::npos)
      << verdict.complaints[0].sentence;
}

TEST(Counts, FollowWhatTheRouterChose) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = noise_like({64, 64});
  const auto forward = [&](const std::vector<int64_t>& chosen, std::size_t runs) {
    const site::ForwardScope root(site::place_id("model"));
    const site::Scope mlp(site::place_id("model.layers.0.mlp"));
    site::note_routing(site::place_id("model.layers.0.mlp.experts"), at::tensor(chosen), 8);
    for (std::size_t i = 0; i < runs; ++i) {
      const site::Scope expert(site::place_id("model.layers.0.mlp.experts." + std::to_string(chosen[i])));
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
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kCounts);
  EXPECT_EQ(verdict.complaints[0].rule, plan->rules()[0]->rule.name);
  EXPECT_EQ(verdict.complaints[0].place, "model.layers.0.mlp.experts.6");
  EXPECT_NE(verdict.complaints[0].sentence.find("12 calls in rollout where 2 forwards and 7 routed calls make 14: 0 at "
                                                "model.layers.0.mlp.experts.6 instead of 2"),
            std::string::npos)
      << verdict.complaints[0].sentence;
}

}  // namespace counts_test
}  // namespace faultline::tap
