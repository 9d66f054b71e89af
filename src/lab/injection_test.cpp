// Plans on our own model: rules that could not be counted are refused, and the counts of a mixture of experts hold
// whatever its routers choose.
#include "lab/injection.h"
#include "base/json.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/generate.h"
#include "site/scope.h"
#include "tap/operator_tap.h"

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

// What the rows of the ledger say about a role in all phases.
int64_t calls_at(const Injection::Proof& proof, const std::string& role, const char* column = "calls") {
  int64_t calls = 0;
  for (const Json& row : proof.report.at("rows"))
    if (row.at("place").get<std::string>().ends_with(role)) calls += row.at("ledger").at(column).get<int64_t>();
  return calls;
}

TEST(Injection, FaultsWhatGoesIntoTheCacheAndCountsIt) {
  model::CausalLm model(tiny_config(false), 3, at::kFloat, at::kCPU);
  const Injection::Proof proof = generated_under(model, "gain(strength=0.5) @ module=kv_cache", 3);
  EXPECT_TRUE(proof.complaints.empty());
  EXPECT_GT(calls_at(proof, "k_cache"), 0);
  EXPECT_EQ(calls_at(proof, "k_cache"), calls_at(proof, "v_cache"));
  const Injection::Proof values = generated_under(model, "gain(strength=0.5) @ module=v_cache, layer=1", 3);
  EXPECT_TRUE(values.complaints.empty());
  EXPECT_EQ(calls_at(values, "k_cache"), 0);
  EXPECT_EQ(calls_at(values, "v_cache"), calls_at(proof, "v_cache") / 2);
}

TEST(Injection, StoresFaultyKeysAndAttendsToThemLater) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kRollout);
  model::CausalLm model(tiny_config(false), 3, at::kFloat, at::kCPU);
  const at::Tensor tokens = at::arange(12, at::kLong).view({1, 12}), length = at::full({1}, 12, at::kLong);
  const auto filled = [&] {
    model::KvCache cache(model.config(), 1, 16, model.options());
    model.prefill(tokens, length, at::zeros({1}, at::kLong), cache);
    return cache;
  };
  const model::KvCache clean = filled();
  const auto under = [&](const std::string& fault) {
    const auto plan = std::make_shared<tap::Plan>(std::vector{rule(fault)}, settings_of("{seed: 0}"));
    tap::arm(plan);
    model::KvCache cache = filled();
    tap::disarm();
    return cache;
  };
  const model::KvCache faulty = under("gain(strength=1, extent.rows=3) @ module=k_cache, layer=1");
  EXPECT_TRUE(at::equal(faulty.layers[0].keys, clean.layers[0].keys));
  EXPECT_TRUE(at::equal(faulty.layers[1].values, clean.layers[1].values));
  at::Tensor wanted = clean.layers[1].keys.clone();
  wanted.select(2, 3).mul_(2);
  EXPECT_TRUE(at::equal(faulty.layers[1].keys, wanted)) << "the token at position 3, in every head";
  const site::Place& place = site::place_of(site::place_id("model.layers.1.self_attn.k_cache"));
  EXPECT_FALSE(tap::rule_means_module(*rule("gain(strength=1) @ module='model.layers.*'").where, place))
      << "a cache is no module of the model";
}

TEST(Injection, CountsConditionsOnTheKindOfForward) {
  model::CausalLm model(tiny_config(false), 3, at::kFloat, at::kCPU);
  const Injection::Proof prefill =
      generated_under(model, "gain(strength=0.5, when.forward=prefill) @ operator=matmul", 3);
  const Injection::Proof decode = generated_under(model, "gain(strength=0.5, when.decode_step=2) @ operator=matmul", 3);
  for (const Injection::Proof* proof : {&prefill, &decode}) {
    EXPECT_TRUE(proof->complaints.empty());
    EXPECT_GT(calls_at(*proof, "qkv_proj", "active_calls"), 0);
    EXPECT_LT(calls_at(*proof, "qkv_proj", "active_calls"), calls_at(*proof, "qkv_proj"));
  }
  EXPECT_EQ(calls_at(prefill, "lm_head", "active_calls"), 0) << "a prefill has no head";
}

TEST(Injection, RefusesWhatThisRunNeverHas) {
  model::CausalLm model(tiny_config(false), 3, at::kFloat, at::kCPU);
  const auto sentence = [&](const std::string& fault) -> std::string {
    try {
      Injection({{rule(fault)}, settings_of("{seed: 0}")}, model, site::Phase::kRollout, 1);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(sentence("gain(strength=0.5, when.forward=body) @ operator=matmul").find("it would never act"),
            std::string::npos);
  EXPECT_NE(sentence("gain(strength=0.5) @ operator=matmul, surface=bias").find("this model has none"),
            std::string::npos);
  EXPECT_NE(sentence("gain(strength=0.5) @ module=kv_cach").find("did you mean 'kv_cache'?"), std::string::npos);
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
