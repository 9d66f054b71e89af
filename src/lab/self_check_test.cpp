// The checks before a measurement: a model that does not repeat itself and a fault that changes nothing are refused,
// and a sound pair passes.
#include <gtest/gtest.h>

#include "base/error.h"
#include "lab/injection.h"
#include "tap/operator_tap.h"

namespace faultline {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.vocabulary = 64, config.hidden = 32, config.layers = 2, config.heads = 4, config.kv_heads = 2;
  config.head_size = 8, config.inner = 48, config.context = 64, config.tied_output = true;
  return config;
}

std::string complaint(const std::string& fault) {
  CausalLm model(small_config(), 3, at::kFloat, at::kCPU);
  Injection injection({parse_rule(fault, RuleUse::kInPlan)}, {}, model, Phase::kRollout, 1);
  try {
    injection.self_check();
  } catch (const EvidenceError& error) {
    return error.what();
  }
  return "";
}

TEST(SelfCheck, PassesASoundFault) { EXPECT_EQ(complaint("relative_gaussian(strength=0.05) @ operator=matmul"), ""); }

TEST(SelfCheck, TheCanaryDiesWhereTheArmedPlanChangesNothing) {
  const std::string small = "deadzone(threshold=1e-30, relative_to=none";
  EXPECT_NE(complaint(small + ") @ operator=matmul").find("canary: "), std::string::npos);
  EXPECT_EQ(complaint(small + ", rule.expect=invisible) @ operator=matmul"), "");
}

TEST(SelfCheck, AFaultThatRestsAtFirstIsNoCanaryThatDied) {
  EXPECT_EQ(complaint("relative_gaussian(strength=0.05, lifetime.kind=window, lifetime.from=5, lifetime.to=9) @ "
                      "operator=matmul"),
            "");
  EXPECT_EQ(complaint("relative_gaussian(strength=0.05, lifetime.kind=transient, lifetime.probability=1e-6) @ "
                      "operator=matmul"),
            "");
}

// Noise of another plan, drawn call by call, stands for a machine that does not repeat itself.
TEST(SelfCheck, TwoForwardsThatDifferAreNoBasisForAComparison) {
  CausalLm model(small_config(), 3, at::kFloat, at::kCPU);
  Injection injection({parse_rule("gain(strength=0.05) @ operator=matmul", RuleUse::kInPlan)}, {}, model,
                      Phase::kRollout, 1);
  const Rule noise = parse_rule("relative_gaussian(strength=0.05) @ operator=matmul", RuleUse::kInPlan);
  arm(std::make_shared<Plan>(std::vector<Rule>{noise}, PlanSettings{}));
  std::string said;
  try {
    injection.self_check();
  } catch (const EvidenceError& error) {
    said = error.what();
  }
  disarm();
  EXPECT_NE(said.find("A/A: two forwards without faults differ"), std::string::npos) << said;
}

}  // namespace
}  // namespace faultline
