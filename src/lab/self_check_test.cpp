// The checks before a measurement: a model that does not repeat itself and a fault that changes nothing are refused,
// and a sound pair passes.
#include <gtest/gtest.h>

#include <optional>

#include "base/error.h"
#include "lab/injection.h"
#include "tap/operator_tap.h"

namespace faultline::lab {
namespace self_check_test {

model::ModelConfig small_config() {
  model::ModelConfig config;
  config.vocabulary = 64, config.hidden = 32, config.layers = 2, config.heads = 4, config.kv_heads = 2;
  config.head_size = 8, config.inner = 48, config.context = 64, config.tied_output = true;
  return config;
}

std::optional<ComplaintCode> complaint(const std::string& fault) {
  model::CausalLm model(small_config(), 3, at::kFloat, at::kCPU);
  const Node recipe = recipe::recipe_of_rules({numeric::parse_rule(fault, numeric::RuleUse::kInPlan)}, 0);
  Injection injection(recipe::read_plan_spec(recipe, /*total_steps=*/10), model, site::Phase::kRollout, 1);
  try {
    injection.self_check();
  } catch (const EvidenceError& error) {
    return error.complaints().at(0).code;
  }
  return {};
}

TEST(SelfCheck, PassesASoundFault) { EXPECT_FALSE(complaint("relative_gaussian(strength=0.05) @ operator=matmul")); }

TEST(SelfCheck, TheCanaryDiesWhereTheArmedPlanChangesNothing) {
  const std::string small = "deadzone(threshold=1e-30, relative_to=none";
  EXPECT_EQ(complaint(small + ") @ operator=matmul"), ComplaintCode::kCanary);
  EXPECT_FALSE(complaint(small + ", rule.expect=invisible) @ operator=matmul"));
}

TEST(SelfCheck, AFaultThatRestsAtFirstIsNoCanaryThatDied) {
  EXPECT_FALSE(
      complaint("relative_gaussian(strength=0.05, lifetime.kind=window, lifetime.from=5, lifetime.to=9) @ "
                "operator=matmul"));
  EXPECT_FALSE(
      complaint("relative_gaussian(strength=0.05, lifetime.kind=transient, lifetime.probability=1e-6) @ "
                "operator=matmul"));
}

// Noise of another plan, drawn call by call, stands for a machine that does not repeat itself.
TEST(SelfCheck, TwoForwardsThatDifferAreNoBasisForAComparison) {
  model::CausalLm model(small_config(), 3, at::kFloat, at::kCPU);
  const auto plan_of = [](const std::string& fault) {
    return recipe::read_plan_spec(recipe::recipe_of_rules({numeric::parse_rule(fault, numeric::RuleUse::kInPlan)}, 0));
  };
  Injection injection(plan_of("gain(strength=0.05) @ operator=matmul"), model, site::Phase::kRollout, 1);
  const recipe::PlanSpec noise = plan_of("relative_gaussian(strength=0.05) @ operator=matmul");
  tap::arm(std::make_shared<tap::Plan>(noise.rules, noise.settings));
  std::optional<ComplaintCode> said;
  try {
    injection.self_check();
  } catch (const EvidenceError& error) {
    said = error.complaints().at(0).code;
  }
  tap::disarm();
  EXPECT_EQ(said, ComplaintCode::kRepeats);
}

}  // namespace self_check_test
}  // namespace faultline::lab
