// Plans on our own model: rules that could not be counted are refused, and the counts of a mixture of experts hold
// whatever its routers choose.
#include "lab/injection.h"
#include "base/json.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/generate.h"
#include "site/scope.h"

namespace faultline::lab {
namespace injection_test {

numeric::Rule rule(const std::string& text) { return numeric::parse_rule(text, numeric::RuleUse::kInPlan); }

recipe::PlanSettings settings_of(const char* recipe) {
  return recipe::read_plan_spec(parse_yaml(recipe, "test")).settings;
}

std::string refusal(const std::string& where, const char* device) {
  const tap::Plan plan({rule("relative_gaussian(strength=0.05) @ " + where)}, settings_of("{seed: 0}"));
  try {
    refuse_operators_chosen_by_rows(plan, at::Device(device));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

model::ModelConfig tiny_config(bool mixture) {
  model::ModelConfig config;
  config.vocabulary = 64, config.hidden = 32, config.layers = 2, config.heads = 4, config.kv_heads = 2;
  config.head_size = 8, config.inner = 48, config.context = 64, config.tied_output = true;
  if (!mixture) return config;
  config.architecture = model::Architecture::kQwen2Moe;
  config.moe.experts = 8, config.moe.experts_per_token = 2, config.moe.expert_size = 16;
  config.moe.shared_expert_size = 24;
  return config;
}

// Prompts of many lengths through few slots, so that prefills and batches have all sizes.
Injection::Proof generated_under(model::CausalLm& model, const std::string& fault, int64_t slots) {
  Injection injection({{rule(fault)}, settings_of("{seed: 0}")}, model, site::Phase::kRollout, slots);
  injection.self_check();
  model::GenerateOptions options;
  options.slots = slots;
  model::Generator generator(model, options);
  std::vector<model::Request> requests;
  for (int64_t i = 0; i < 7; ++i)
    requests.push_back(
        {std::vector<int64_t>(static_cast<std::size_t>(1 + 3 * i), 5 + i), 6, static_cast<uint64_t>(i), {0.9, 0, 1.0}});
  injection.arm();
  {
    const site::PhaseGuard phase(site::Phase::kRollout);
    generator.run(requests);
  }
  return injection.finish();
}

TEST(Injection, RefusesOperatorsThatTheNumberOfRowsChooses) {
  for (const char* name : {"faultline::few_rows_linear", "aten::mm", "aten::*mm"}) {
    const std::string sentence = refusal(std::string("operator=") + name, "cuda");
    EXPECT_NE(sentence.find(name), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("operator: matmul"), std::string::npos) << sentence;
  }
}

TEST(Injection, TakesTheFamilyAndWhatHasNoChoice) {
  EXPECT_EQ(refusal("operator=matmul", "cuda"), "");
  EXPECT_EQ(refusal("operator=all_ops", "cuda"), "");
  EXPECT_EQ(refusal("operator=norm", "cuda"), "");
  EXPECT_EQ(refusal("module=layer_output", "cuda"), "");
  EXPECT_EQ(refusal("operator=faultline::few_rows_linear", "cpu"), "") << "one product serves any number of rows there";
}

TEST(Injection, TakesTorchsProductInPhasesWithGradients) {
  numeric::Rule training = rule("relative_gaussian(strength=0.05) @ operator=aten::mm");
  const tap::Plan trained({training}, settings_of("{seed: 0, phases: {rollout: false, eval: false, diagnose: false}}"));
  EXPECT_NO_THROW(refuse_operators_chosen_by_rows(trained, at::Device("cuda")));
  EXPECT_THROW(refuse_operators_chosen_by_rows(trained, at::Device("cuda"), /*scores=*/true), UsageError);
  const tap::Plan sampled({training}, settings_of("{seed: 0, phases: {eval: false, diagnose: false}}"));
  EXPECT_THROW(refuse_operators_chosen_by_rows(sampled, at::Device("cuda")), UsageError);
}

// A rule that cannot act in this run is refused before it, whatever it is on: the phase is off, nothing goes backward
// there, its window or its schedule never comes.
TEST(Injection, RefusesARuleThatActsInNoPhaseOrStepOfTheRun) {
  model::CausalLm model(tiny_config(false), 3, at::kFloat, at::kCPU);
  const auto refused = [&](const std::string& recipe_text, const std::string& fault, int64_t steps = 1) {
    Node recipe = parse_yaml(recipe_text, "test");
    recipe.set("faults",
               recipe::recipe_of_rules({rule("gain(strength=0.5) @ operator=norm"), rule(fault)}, 0).at("faults"));
    recipe.find("faults")->items()[1].set("name", "second");
    try {
      const Injection injection(recipe::read_plan_spec(recipe, steps), model, site::Phase::kEval, 1);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string off = "phases: {eval: clean}", no_gradient = "nothing goes backward in eval";
  for (const char* where : {"operator: matmul", "module: layer_output", "module: down_proj, surface: output"}) {
    const auto fault = [&](const std::string& more) {
      return "{name: a, where: {" + std::string(where) + "}, what: {kind: zero}" + more + "}";
    };
    EXPECT_EQ(refused("seed: 0", fault("")), "");
    const std::string sentence = refused("seed: 0", fault(", " + off));
    EXPECT_NE(sentence.find("rule 'second'"), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("phase eval is off"), std::string::npos) << sentence;
    EXPECT_NE(refused("{seed: 0, " + off + "}", fault(", phases: {eval: both}")).find("rule 'gain'"),
              std::string::npos);
  }
  EXPECT_NE(refused("seed: 0", "gain(strength=1) @ module=layer_output,surface=gradient").find(no_gradient),
            std::string::npos);
  const std::string window = "gain(strength=1, lifetime.kind=window, lifetime.from=2, lifetime.to=3) @ operator=matmul";
  EXPECT_NE(refused("seed: 0", window).find("its window opens at step 2"), std::string::npos);
  EXPECT_NE(refused("seed: 0", window, 2).find("the run has 2 steps"), std::string::npos);
  EXPECT_EQ(refused("seed: 0", window, 3), "");
  const std::string rising =
      "gain(strength=1, schedule.kind=linear, schedule.sigma_start=0, schedule.sigma_end=0.1) @ operator=matmul";
  EXPECT_NE(refused("seed: 0", rising).find("its schedule is 0 all the time"), std::string::npos);
  EXPECT_EQ(refused("seed: 0", rising, 2), "");
}

TEST(Injection, CountsOfAProductByItsNameHoldForEveryNumberOfRows) {
  model::CausalLm model(tiny_config(false), 3, at::kFloat, at::kCPU);
  for (const int64_t slots : {1, 3}) {
    const auto proof =
        generated_under(model, "relative_gaussian(strength=0.05) @ operator=faultline::few_rows_linear", slots);
    EXPECT_TRUE(proof.complaints.empty()) << joined_sentences(proof.complaints);
  }
}

TEST(Injection, CountsOfAMixtureHoldWhateverItsRoutersChoose) {
  model::CausalLm model(tiny_config(true), 3, at::kFloat, at::kCPU);
  for (const char* family : {"matmul", "all_ops"}) {
    const auto proof = generated_under(model, std::string("relative_gaussian(strength=0.02) @ operator=") + family, 3);
    EXPECT_TRUE(proof.complaints.empty()) << family << ": " << joined_sentences(proof.complaints);
    EXPECT_GT(proof.report["rules"][0]["calls"].get<double>(), 0);
  }
}

TEST(Injection, ExpertsAreFaultedAndOnlyTheirCountsAreTheRouters) {
  model::CausalLm model(tiny_config(true), 3, at::kFloat, at::kCPU);
  const auto proof = generated_under(model, "relative_gaussian(strength=0.02) @ operator=matmul", 3);
  int64_t at_experts = 0, elsewhere = 0;
  for (const auto& row : proof.report["rows"])
    (row["place"].get<std::string>().find(".experts.") != std::string::npos ? at_experts : elsewhere) += 1;
  EXPECT_GT(at_experts, 0);
  EXPECT_GT(elsewhere, 0);
}

}  // namespace injection_test
}  // namespace faultline::lab
