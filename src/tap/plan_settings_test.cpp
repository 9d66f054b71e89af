// One function makes the settings of a plan, and it leaves out nothing that a recipe says about it.
#include <gtest/gtest.h>

#include <limits>
#include <type_traits>

#include "recipe/recipe.h"
#include "tap/plan.h"

namespace faultline::tap {
namespace plan_settings_test {

// Whoever could make settings or change them would forget one of them.
static_assert(!std::is_aggregate_v<recipe::PlanSettings> && !std::is_default_constructible_v<recipe::PlanSettings>);
static_assert(!std::is_assignable_v<recipe::PlanSettings&, recipe::PlanSettings>);
static_assert(!std::is_assignable_v<decltype((std::declval<recipe::PlanSettings&>().phases)), Node>);

TEST(PlanSettings, HoldWhatTheRecipeSays) {
  const recipe::PlanSpec spec = recipe::read_plan_spec(
      parse_yaml("{seed: 7, phases: {eval: clean, ref: true}, allow_partial: [lm_head, 'layers.3.mlp.*']}", "test"),
      116, 28);
  EXPECT_EQ(spec.settings.seed, 7u);
  EXPECT_EQ(spec.settings.total_steps, 116);
  EXPECT_EQ(spec.settings.layer_count, 28);
  EXPECT_EQ(spec.settings.allow_partial, (std::vector<std::string>{"lm_head", "layers.3.mlp.*"}));
  EXPECT_EQ(spec.settings.phases.at("eval").as_string(), "clean");
  EXPECT_TRUE(spec.rules.empty()) << "a recipe need not have faults";
  const recipe::PlanSettings deeper = spec.settings.on_layers(61);
  EXPECT_EQ(deeper.layer_count, 61);
  EXPECT_EQ(deeper.seed, 7u);
  EXPECT_EQ(deeper.total_steps, 116);
  EXPECT_EQ(deeper.allow_partial, spec.settings.allow_partial);
  EXPECT_EQ(deeper.phases, spec.settings.phases);
}

TEST(PlanSettings, DecideInWhichPhasesARuleActs) {
  const numeric::Rule rule = numeric::parse_rule("zero() @ operator=matmul", numeric::RuleUse::kInPlan);
  Node recipe = recipe::recipe_of_rules({rule}, 1);
  const auto acts = [&](site::Phase phase) {
    recipe::PlanSpec spec = recipe::read_plan_spec(recipe);
    return Plan(std::move(spec.rules), spec.settings).rules()[0]->phases.test(static_cast<std::size_t>(phase));
  };
  EXPECT_TRUE(acts(site::Phase::kEval) && acts(site::Phase::kRollout));
  recipe.set("phases", parse_yaml("{eval: clean}", "test"));
  EXPECT_TRUE(!acts(site::Phase::kEval) && acts(site::Phase::kRollout));
}

TEST(PlanSettings, OfRulesFromTheCommandLineHaveTheirNamesAndSeed) {
  numeric::Rule rule =
      numeric::parse_rule("gain(strength=0.5) @ module=layer_output,layer=3", numeric::RuleUse::kInPlan);
  rule.name = "gain_2", rule.source.set("name", "gain_2");  // as --fault names a second one
  for (const uint64_t seed : {uint64_t{0}, uint64_t{5}, std::numeric_limits<uint64_t>::max()}) {
    const recipe::PlanSpec spec = recipe::read_plan_spec(recipe::recipe_of_rules({rule}, seed));
    EXPECT_EQ(spec.settings.seed, seed);
    ASSERT_EQ(spec.rules.size(), 1u);
    EXPECT_EQ(spec.rules[0].name, "gain_2");
    EXPECT_EQ(spec.rules[0].what.strength, 0.5);
    EXPECT_EQ(spec.rules[0].where->layers.size(), 1u);
  }
}

}  // namespace plan_settings_test
}  // namespace faultline::tap
