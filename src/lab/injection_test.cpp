// Plans on our own model: rules that could not be counted are refused, and the counts of a mixture of experts hold
// whatever its routers choose.
#include "lab/injection.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "lab/countable.h"
#include "model/generate.h"
#include "site/phase_guard.h"

namespace faultline {
namespace {

Rule rule(const std::string& text) { return parse_rule(text, RuleUse::kInPlan); }

std::string refusal(const std::string& where, const char* device) {
  const Plan plan({rule("relative_gaussian(strength=0.05) @ " + where)}, {});
  try {
    refuse_operators_chosen_by_rows(plan, at::Device(device));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

ModelConfig tiny_config(bool mixture) {
  ModelConfig config;
  config.vocabulary = 64, config.hidden = 32, config.layers = 2, config.heads = 4, config.kv_heads = 2;
  config.head_size = 8, config.inner = 48, config.context = 64, config.tied_output = true;
  if (!mixture) return config;
  config.architecture = Architecture::kQwen2Moe;
  config.moe.experts = 8, config.moe.experts_per_token = 2, config.moe.expert_size = 16;
  config.moe.shared_expert_size = 24;
  return config;
}

// Prompts of many lengths through few slots, so that prefills and batches have all sizes.
Injection::Proof generated_under(CausalLm& model, const std::string& fault, int64_t slots) {
  Injection injection({rule(fault)}, {}, model, Phase::kRollout, slots);
  injection.self_check();
  GenerateOptions options;
  options.slots = slots;
  Generator generator(model, options);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 7; ++i)
    requests.push_back(
        {std::vector<int64_t>(static_cast<std::size_t>(1 + 3 * i), 5 + i), 6, static_cast<uint64_t>(i), {0.9, 0, 1.0}});
  injection.arm();
  {
    const PhaseGuard phase(Phase::kRollout);
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
  Rule training = rule("relative_gaussian(strength=0.05) @ operator=aten::mm");
  PlanSettings settings;
  settings.phases = parse_yaml("{rollout: false, eval: false, diagnose: false}", "test");
  EXPECT_NO_THROW(refuse_operators_chosen_by_rows(Plan({training}, settings), at::Device("cuda")));
  EXPECT_THROW(refuse_operators_chosen_by_rows(Plan({training}, settings), at::Device("cuda"), /*scores=*/true),
               UsageError);
  settings.phases = parse_yaml("{eval: false, diagnose: false}", "test");
  EXPECT_THROW(refuse_operators_chosen_by_rows(Plan({training}, settings), at::Device("cuda")), UsageError);
}

TEST(Injection, CountsOfAProductByItsNameHoldForEveryNumberOfRows) {
  CausalLm model(tiny_config(false), 3, at::kFloat, at::kCPU);
  for (const int64_t slots : {1, 3}) {
    const auto proof =
        generated_under(model, "relative_gaussian(strength=0.05) @ operator=faultline::few_rows_linear", slots);
    EXPECT_TRUE(proof.complaints.empty()) << proof.complaints.front();
  }
}

TEST(Injection, CountsOfAMixtureHoldWhateverItsRoutersChoose) {
  CausalLm model(tiny_config(true), 3, at::kFloat, at::kCPU);
  for (const char* family : {"matmul", "all_ops"}) {
    const auto proof = generated_under(model, std::string("relative_gaussian(strength=0.02) @ operator=") + family, 3);
    EXPECT_TRUE(proof.complaints.empty()) << family << ": " << proof.complaints.front();
    EXPECT_GT(proof.report["rules"][0]["calls"].get<double>(), 0);
  }
}

TEST(Injection, ExpertsAreFaultedAndOnlyTheirCountsAreTheRouters) {
  CausalLm model(tiny_config(true), 3, at::kFloat, at::kCPU);
  const auto proof = generated_under(model, "relative_gaussian(strength=0.02) @ operator=matmul", 3);
  int64_t at_experts = 0, elsewhere = 0;
  for (const auto& row : proof.report["rows"])
    (row["place"].get<std::string>().find(".experts.") != std::string::npos ? at_experts : elsewhere) += 1;
  EXPECT_GT(at_experts, 0);
  EXPECT_GT(elsewhere, 0);
}

}  // namespace
}  // namespace faultline
