// A dead zone that passes again after the rules behind it.
#include "site/boundary.h"
#include "tap/report.h"
#include "tap/testing.h"

namespace faultline::tap {
namespace reevaluate_test {

// The published variant: zone, noise, zone again with the first threshold. What noise pushed below it is zeroed too.
TEST(Reevaluate, ZeroesAgainWithTheFirstThreshold) {
  const at::Tensor a = noise_like({32, 64}, at::kFloat), b = noise_like({64, 48}, at::kFloat), clean = a.mm(b);
  const std::string noise = "relative_gaussian(strength=0.5) @ operator=matmul";
  const at::Tensor threshold = clean.abs().amax(-1, true) * 0.2f;
  at::Tensor once;
  {
    const Armed plan(make_plan({"deadzone(threshold=0.2) @ operator=matmul", noise}));
    once = a.mm(b);
  }
  const Armed plan(make_plan({"deadzone(threshold=0.2, rule.reevaluate=true) @ operator=matmul", noise}));
  const at::Tensor twice = a.mm(b);
  const at::Tensor fell = once.abs().lt(threshold);
  EXPECT_GT(fell.logical_and(once.ne(0)).sum().item<int64_t>(), 0);  // else the second pass has nothing to do
  EXPECT_TRUE(at::equal(twice, once.masked_fill(fell, 0)));
  const auto evidence = plan->read_evidence();
  ASSERT_EQ(evidence.size(), 3u);
  EXPECT_EQ(evidence[2].row->rule->rule.name, "deadzone0 (again)");
  EXPECT_EQ(evidence[2].numbers.changed, static_cast<double>(fell.logical_and(once.ne(0)).sum().item<int64_t>()));
  EXPECT_TRUE(judge(*plan, {}).complaints.empty());
}

TEST(Reevaluate, PassesAgainAtABoundaryOverTheSameChannels) {
  const site::PlaceId place = site::place_id("model.layers.3");
  const at::Tensor x = noise_like({16, 64}, at::kFloat);
  const std::string where = " @ module=layer_output", noise = "scaled_gaussian(strength=0.05)" + where;
  const std::string zone = "deadzone(threshold=0.3, extent.fraction=0.5, extent.structure=channel";
  const auto pass = [&](const std::string& first) {
    const Armed plan(make_plan({first, noise}));
    return site::boundary(x, place, site::Surface::kOutput);
  };
  const at::Tensor once = pass(zone + ")" + where), twice = pass(zone + ", rule.reevaluate=true)" + where);
  const at::Tensor revived = once.ne(twice);  // zeros that additive noise had lifted off
  EXPECT_GT(revived.sum().item<int64_t>(), 0);
  EXPECT_EQ(twice.masked_select(revived).ne(0).sum().item<int64_t>(), 0);
  const at::Tensor threshold = x.abs().amax(-1, true) * 0.3f;
  EXPECT_EQ(
      once.masked_select(revived).abs().ge(threshold.expand_as(once).masked_select(revived)).sum().item<int64_t>(), 0);
  at::Tensor zone_alone;
  {
    const Armed plan(make_plan({zone + ")" + where}));
    zone_alone = site::boundary(x, place, site::Surface::kOutput);
  }
  const at::Tensor broken = zone_alone.eq(0).any(0);  // the channels of the mask: half of them, the same in both passes
  EXPECT_LT(broken.sum().item<int64_t>(), 64);
  EXPECT_FALSE(revived.any(0).logical_and(broken.logical_not()).any().item<bool>());
}

TEST(Reevaluate, IsRefusedWhereItWouldDoNothing) {
  const std::string zone = "deadzone(threshold=0.2, rule.reevaluate=true";
  EXPECT_THROW(make_plan({zone + ") @ operator=matmul"}), UsageError);  // no rule behind it
  EXPECT_THROW(make_plan({zone + ", lifetime.kind=transient, lifetime.probability=0.5) @ operator=matmul", kNoise}),
               UsageError);
  EXPECT_THROW(make_plan({zone + ") @ operator=matmul,surface=weight", kNoise}), UsageError);
  EXPECT_THROW(make_plan({zone + ") @ operator=matmul,surface=input", kNoise}), UsageError);
}

}  // namespace reevaluate_test
}  // namespace faultline::tap
