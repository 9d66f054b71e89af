// Noise on norms: it is there, it is what the schedule says, it is gone afterwards, and it is the same everywhere.
#include "aqn/norm_noise.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "aqn/aqn_section.h"
#include "base/config/schema.h"
#include "base/error.h"
#include "base/files/temporary_folder.h"

namespace faultline::aqn {
namespace norm_noise_test {

struct Norms {
  std::vector<std::string> names;
  std::vector<at::Tensor> weights;
  std::vector<NoiseTarget> targets;

  explicit Norms(int64_t layers = 3, double value = 0.27, int64_t size = 512, bool moe = false) {
    const auto add = [&](const std::string& path) { names.push_back(path); };
    for (int64_t i = 0; i < layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i);
      add(layer + ".input_layernorm"), add(layer + ".self_attn.q_proj"), add(layer + ".post_attention_layernorm");
      add(layer + (moe ? ".mlp.gate" : ".mlp.gate_proj"));
    }
    add("model.norm"), add("lm_head");
    for (std::size_t i = 0; i < names.size(); ++i) weights.push_back(at::full({size}, value, at::kFloat));
    for (std::size_t i = 0; i < names.size(); ++i)
      targets.push_back({names[i] + ".weight", &weights[i], site::place_id(names[i])});
  }
};

AqnSpec constant(double sigma, bool relative = false) {
  AqnSpec spec;
  spec.schedule.kind = ScheduleKind::kConstant;
  spec.schedule.sigma_start = sigma;
  spec.scale = relative ? AqnScale::kRelative : AqnScale::kAbsolute;
  return spec;
}

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(NormNoise, SelectsByRoleAndCountsThem) {
  Norms dense;
  EXPECT_EQ(select_norms(dense.targets, {{}, {}, 3, 7}).size(), 7u) << "2 a layer and the final one";
  EXPECT_EQ(select_norms(dense.targets, {{}, {{1, 1}}, 3, 7}).size(), 2u) << "a layer's two; the final has none";
  Norms mixture(3, 0.27, 512, true);
  const auto chosen = select_norms(mixture.targets, {{"post_attention_layernorm"}, {}, 3, 7});
  ASSERT_EQ(chosen.size(), 3u);
  for (const NoiseTarget& target : chosen) EXPECT_NE(target.name.find("post_attention_layernorm"), std::string::npos);
}

TEST(Lesson1NothingMatched, IsAnError) {
  Norms norms;
  std::vector<NoiseTarget> linears;
  for (const NoiseTarget& target : norms.targets)
    if (site::place_of(target.place).role != "rmsnorm") linears.push_back(target);
  EXPECT_NE(refusal_of([&] { select_norms(linears, {{}, {}, 3, 7}); }).find("not one RMSNorm"), std::string::npos);
}

TEST(NormNoise, RefusesLayersThatDoNotExist) {
  Norms norms;
  const std::string refusal = refusal_of([&] { select_norms(norms.targets, {{}, {{2, 5}}, 3, 7}); });
  EXPECT_NE(refusal.find("2-5 is named, but the model has layers 0 to 2"), std::string::npos) << refusal;
}

TEST(NormNoise, HasTheStrengthThatTheScheduleSaysAndIsMeasured) {
  for (const bool relative : {false, true}) {
    Norms norms;
    NormNoise noise(constant(0.02, relative), select_norms(norms.targets, {{}, {}, 3, 7}), 3, 5, 10);
    {
      const auto guard = noise.apply(4);
      const at::Tensor difference = norms.weights[0] - 0.27;
      const double expected = relative ? 0.02 * 0.27 : 0.02;
      EXPECT_NEAR(difference.std().item<double>(), expected, 0.1 * expected);
      EXPECT_LT(std::abs(difference.mean().item<double>()), 0.2 * expected);
      EXPECT_TRUE(norms.weights[1].eq(0.27f).all().item<bool>()) << "a projection is no norm";
    }
    noise.check();
    EXPECT_NEAR(noise.last().measured, noise.last().expected, 0.05 * noise.last().expected);
    EXPECT_EQ(noise.last().changed, noise.last().elements);
    EXPECT_EQ(noise.last().weights, 7);
  }
}

TEST(Lesson14NoiseIsRemoved, ToTheBitAfterManySteps) {
  Norms norms;
  const at::Tensor before = norms.weights[0].clone();
  const void* storage = norms.weights[0].const_data_ptr();
  NormNoise noise(constant(0.05), select_norms(norms.targets, {{}, {}, 3, 7}), 3, 5, 100);
  for (int64_t step = 0; step < 100; ++step) {
    const auto guard = noise.apply(step);
    EXPECT_FALSE(norms.weights[0].equal(before));
  }
  EXPECT_TRUE(norms.weights[0].equal(before));
  EXPECT_EQ(norms.weights[0].const_data_ptr(), storage) << "the model's own tensor, not a copy of it";
  noise.check();
}

TEST(Lesson14NoiseIsRemoved, AWriteToTheCleanWeightIsNoticed) {
  Norms norms;
  const at::Tensor clean = norms.weights[0];
  NormNoise noise(constant(0.05), select_norms(norms.targets, {{}, {}, 3, 7}), 3, 5, 10);
  {
    const auto guard = noise.apply(0);
    clean[3].fill_(9);
  }
  EXPECT_NE(refusal_of([&] { noise.check(); }).find("changed while"), std::string::npos);
}

TEST(NormNoise, IsMeasuredOnWhatTheModelCarriesToTheEnd) {
  Norms norms;
  const at::Tensor clean = norms.weights[0];
  NormNoise noise(constant(0.05), select_norms(norms.targets, {{}, {}, 3, 7}), 3, 5, 10);
  {
    const auto guard = noise.apply(0);
    norms.weights[0] = clean;  // somebody puts the model's own weight back: from here on it is clean
  }
  EXPECT_NE(refusal_of([&] { noise.check(); }).find("exchanged or written to"), std::string::npos);
}

TEST(NormNoise, CountsTheWeightsThatHaveNoise) {
  Norms norms;
  AqnSpec spec = constant(0.05);
  spec.schedule.layer_multipliers = {1, 0, 2};
  spec.schedule.elsewhere = 0;
  NormNoise noise(spec, select_norms(norms.targets, {{}, {}, 3, 7}), 3, 5, 10);
  const auto guard = noise.apply(0);
  EXPECT_EQ(noise.last().weights, 4);
  EXPECT_EQ(noise.last().silent, 3) << "the second layer's two and the final norm";
  EXPECT_EQ(noise.last().changed, 4 * 512);
  EXPECT_NE(noise.log_line().find("to 4 RMSNorm weights (skipped 3)"), std::string::npos) << noise.log_line();
}

TEST(NormNoise, KnowsItsStrongestStepAndRefusesToHaveNone) {
  ScheduleSpec zones;
  zones.kind = ScheduleKind::kZones;
  zones.zones = {{0, 0, 1, 3}, {1, 1, 2, 0}};
  EXPECT_EQ(strongest_step(zones, {0, 1}, 2, 10), 5) << "from the late phase on: 3 and 0 are more than 1 and 2";
  EXPECT_EQ(strongest_step(zones, {1}, 2, 10), 0);
  ScheduleSpec decay;
  decay.num_stages = 5;
  EXPECT_EQ(strongest_step(decay, {0, 1}, 2, 10), 2) << "behind the silent interval";
  decay.layer_multipliers = {1, 0};
  EXPECT_NE(refusal_of([&] { strongest_step(decay, {1}, 2, 10); }).find("noise of 0 at every step"), std::string::npos);
  EXPECT_NE(refusal_of([&] { strongest_step(decay, {0}, 3, 10); }).find("the model has 3 layers"), std::string::npos);
}

TEST(Lesson6ACapturedGraphReadsTheCopies, SoTheirMemoryStays) {
  Norms norms;
  NormNoise noise(constant(0.05), select_norms(norms.targets, {{}, {}, 3, 7}), 3, 5, 10);
  const void* first = nullptr;
  for (int64_t step = 0; step < 3; ++step) {
    const auto guard = noise.apply(step);
    if (step == 0) first = norms.weights[0].const_data_ptr();
    EXPECT_EQ(norms.weights[0].const_data_ptr(), first);
  }
}

TEST(Lesson20ReplicasAgree, TheNoiseFollowsFromSeedStepNameAndElementAlone) {
  const at::Tensor some = norm_deviates(5, 2, "model.norm.weight", 1000);
  EXPECT_TRUE(norm_deviates(5, 2, "model.norm.weight", 1000).equal(some));
  EXPECT_TRUE(norm_deviates(5, 2, "model.norm.weight", 10).equal(some.narrow(0, 0, 10))) << "not on the size";
  EXPECT_FALSE(norm_deviates(6, 2, "model.norm.weight", 1000).equal(some));
  EXPECT_FALSE(norm_deviates(5, 3, "model.norm.weight", 1000).equal(some));
  EXPECT_FALSE(norm_deviates(5, 2, "model.layers.0.input_layernorm.weight", 1000).equal(some));
  const at::Tensor many = norm_deviates(1, 1, "x", 100000);
  EXPECT_NEAR(many.std().item<double>(), 1, 0.01);
  EXPECT_NEAR(many.mean().item<double>(), 0, 0.01);
}

TEST(Lesson12StrengthsBelowTheStepOfTheNumbers, AreRefusedInBf16AndHeldInFp32) {
  const at::Tensor gamma = at::full({576}, 1.5, at::kFloat);
  const at::Tensor rounded = (gamma + 0.0009 * norm_deviates(0, 0, "x", 576)).to(at::kBFloat16);
  EXPECT_TRUE(rounded.eq(1.5).all().item<bool>()) << "the lesson: in bf16 not one element changes";
  const std::string refusal = refusal_of([&] { check_representable(gamma.to(at::kBFloat16), "norm", 0.0009, false); });
  EXPECT_NE(refusal.find("below half a step"), std::string::npos) << refusal;
  EXPECT_EQ(refusal_of([&] { check_representable(gamma, "norm", 0.0009, false); }), "accepted");
  EXPECT_NE(refusal_of([&] { check_representable(gamma, "norm", 1e-9, false); }), "accepted");
  Norms half;
  half.weights[0] = half.weights[0].to(at::kBFloat16);
  EXPECT_NE(refusal_of([&] {
              NormNoise(constant(0.05), select_norms(half.targets, {{}, {}, 3, 7}), 3, 5, 10);
            }).find("must be kept in fp32"),
            std::string::npos);
}

TEST(Lesson2TheStepReachesTheSchedule, EachStepHasTheStrengthThatIsPrinted) {
  Norms norms;
  AqnSpec spec;
  spec.schedule.kind = ScheduleKind::kGlobalDecay;
  NormNoise noise(spec, select_norms(norms.targets, {{}, {}, 3, 7}), 3, 5, 116);
  for (const auto& [step, sigma] :
       std::vector<std::pair<int64_t, double>>{{0, 0}, {12, 0.05}, {24, 0.028117}, {115, 0.0005}}) {
    const auto guard = noise.apply(step);
    EXPECT_NEAR(noise.last().measured, sigma, 0.05 * sigma + 1e-12) << step;
    EXPECT_NEAR((norms.weights[0] - 0.27).to(at::kDouble).square().mean().sqrt().item<double>(), sigma,
                0.1 * sigma + 1e-7);
  }
}

TEST(Lesson3PerLayerMultipliers, ReachTheWeights) {
  Norms norms;
  AqnSpec spec = constant(0.02);
  spec.schedule.layer_multipliers = {1, 0, 2};
  NormNoise noise(spec, select_norms(norms.targets, {{}, {}, 3, 7}), 3, 5, 10);
  const auto guard = noise.apply(0);
  const auto strength = [&](std::size_t i) { return (norms.weights[i] - 0.27).std().item<double>(); };
  EXPECT_NEAR(strength(0), 0.02, 0.002);
  EXPECT_NEAR(strength(4), 0, 1e-7);
  EXPECT_NEAR(strength(8), 0.04, 0.004);
}

AqnSpec read(const std::string& text) {
  static const bool once = [] { return register_aqn_section(), true; }();
  (void)once;
  const Node recipe = validate(parse_yaml(text, "recipe"), SectionRegistry::global().recipe_schema());
  return read_aqn(recipe.at("aqn"));
}

TEST(AqnSection, ReadsScheduleScaleAndLayers) {
  const AqnSpec spec =
      read("aqn: {schedule: epoch_aware, boundaries: [0.05, 0.01, 0.0005], sigma_scale: relative, layers: [1, 4-5]}");
  EXPECT_EQ(spec.schedule.kind, ScheduleKind::kEpochAware);
  EXPECT_EQ(spec.schedule.boundaries.size(), 3u);
  EXPECT_TRUE(spec.relative());
  ASSERT_EQ(spec.layers.size(), 2u);
  EXPECT_EQ(spec.layers[1].last, 5);
  EXPECT_NE(refusal_of([&] { read("aqn: {schedule: epoch_awar}"); }).find("epoch_aware"), std::string::npos);
  EXPECT_NE(refusal_of([&] { read("aqn: {schedule: constant, num_stages: 3}"); }).find("num_stages"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { read("aqn: {schedule: global_decay, num_stages: 0}"); }), "accepted");
}

TEST(AqnSection, RefusesWhatWouldDoNothing) {
  EXPECT_NE(refusal_of([&] { read("aqn: {schedule: constant, sigma_scale: row}"); }).find("activations"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { read("aqn: {schedule: constant, order: after}"); }).find("nothing is before or after"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] {
              read("aqn: {schedule: constant, sites: layer_output, exclude_router_input: true}");
            }).find("norms only"),
            std::string::npos);
}

TEST(NormNoise, LeavesOutWhatTheRouterReadsWhereAsked) {
  Norms mixture(3, 0.27, 512, true);
  const auto chosen = select_norms(mixture.targets, {{}, {}, 3, 7, {"post_attention_layernorm"}});
  ASSERT_EQ(chosen.size(), 4u) << "one a layer and the final one";
  for (const NoiseTarget& target : chosen) EXPECT_EQ(target.name.find("post_attention_layernorm"), std::string::npos);
}

// Somebody else's model: its module paths, as an engine names them.
std::vector<std::string> modules_of(const Norms& norms, const std::vector<std::string>& others = {}) {
  std::vector<std::string> paths{"", "model"};
  for (const std::string& name : norms.names) paths.push_back(name);
  for (const std::string& other : others) paths.push_back(other);
  return paths;
}

std::vector<std::string> names_of(const std::vector<NoiseTarget>& targets) {
  std::vector<std::string> paths;
  for (const NoiseTarget& target : targets) paths.push_back(site::place_of(target.place).path);
  return paths;
}

TEST(NormNoise, ChoosesInSomebodyElsesModelWhatItChoosesInOurs) {
  const Norms dense, mixture(3, 0.27, 512, true);
  const std::vector<std::string> experts{"model.layers.0.mlp.experts", "model.layers.1.mlp.experts.0"};
  AqnSpec spec = constant(0.05);
  EXPECT_EQ(select_norms(modules_of(dense), spec), names_of(select_norms(dense.targets, {{}, {}, 3, 7})));
  EXPECT_EQ(select_norms(modules_of(mixture, experts), spec),
            names_of(select_norms(mixture.targets, {{"post_attention_layernorm"}, {}, 3, 7})));
  spec.exclude_router_input = true;
  EXPECT_EQ(select_norms(modules_of(mixture, experts), spec),
            names_of(select_norms(mixture.targets, {{}, {}, 3, 7, {"post_attention_layernorm"}})));
  EXPECT_NE(refusal_of([&] { select_norms(modules_of(dense), spec); }).find("no router"), std::string::npos);
  spec = constant(0.05);
  spec.layers = {{1, 1}};
  EXPECT_EQ(select_norms(modules_of(dense), spec), names_of(select_norms(dense.targets, {{}, {{1, 1}}, 3, 7})));
  spec.layers = {{2, 5}};
  EXPECT_NE(refusal_of([&] { select_norms(modules_of(dense), spec); }).find("layers 0 to 2"), std::string::npos);
}

TEST(NormNoise, GoesToTheNormsThatAreNamedAndRefusesNamesThatNobodyHas) {
  const Norms dense;
  AqnSpec spec = constant(0.05);
  spec.norms = {"post_attention_layernorm"};
  const auto chosen = select_norms(modules_of(dense), spec);
  ASSERT_EQ(chosen.size(), 3u) << "one a layer";
  EXPECT_EQ(chosen, names_of(select_norms(dense.targets, {{"post_attention_layernorm"}, {}, 3, 7})));
  spec.norms.clear();
  spec.except = {"post_attention_layernorm"};
  EXPECT_EQ(select_norms(modules_of(dense), spec).size(), 4u) << "the other of each layer and the final one";
  spec.except = {"q_norm"};
  const std::string refusal = refusal_of([&] { select_norms(modules_of(dense), spec); });
  EXPECT_NE(refusal.find("aqn.except: the model has no norm called 'q_norm'; it has input_layernorm"),
            std::string::npos)
      << refusal;
  EXPECT_EQ(refusal_of([&] {
              NormSelection selection = norm_selection(spec, false, 3);
              selection.norm_count = 7;
              select_norms(dense.targets, selection);
            }),
            refusal);
}

TEST(NormNoise, TakesTheNormsOfQueriesAndKeysInADenseModel) {
  const std::vector<std::string> paths{"model.layers.0.input_layernorm", "model.layers.0.self_attn.q_norm",
                                       "model.layers.0.self_attn.k_norm", "model.layers.0.post_attention_layernorm",
                                       "model.norm"};
  EXPECT_EQ(select_norms(paths, constant(0.05)), paths);
}

TEST(NormNoise, RefusesModelsThatItDoesNotKnow) {
  const Norms norms;
  const auto refusal = [&](const std::vector<std::string>& others) {
    return refusal_of([&] { select_norms(modules_of(norms, others), constant(0.05)); });
  };
  EXPECT_EQ(refusal({"model.layers.3"}), "accepted") << "another pipeline stage has what is in it";
  EXPECT_NE(refusal({"model.layers.3.mlp"}).find("layer 3 has no norm"), std::string::npos);
  EXPECT_NE(refusal({"visual.blocks.0.norm1"}).find("two stacks of layers, model.layers and visual.blocks"),
            std::string::npos);
  EXPECT_NE(refusal_of([] { select_norms({"model.layers.0.mlp"}, constant(0.05)); }).find("not one RMSNorm"),
            std::string::npos);
}

TEST(NormNoise, RecordsTheLengthOfTheNoiseInUnitsOfSigma) {
  Norms norms;
  NormNoise noise(constant(0.02), select_norms(norms.targets, {{}, {}, 3, 7}), 3, 5, 10);
  const auto guard = noise.apply(0);
  const double elements = 7 * 512;
  EXPECT_NEAR(noise.record()["faultline/aqn/delta_over_sigma"].get<double>(), std::sqrt(elements),
              0.05 * std::sqrt(elements));
}

TEST(ActivationNoise, IsARuleOfTheRolloutAlone) {
  const AqnSpec spec = read("aqn: {schedule: linear, sites: layer_output, sigma_scale: row, layers: 1}");
  const numeric::Rule rule = noise_rule(spec);
  EXPECT_EQ(rule.name, kNoiseRule);
  EXPECT_EQ(rule.where->module_pattern, "layer_output");
  ASSERT_EQ(rule.where->layers.size(), 1u);
  ASSERT_TRUE(rule.schedule);
  for (const auto& entry : rule.phases.entries())
    EXPECT_TRUE(entry.key == "rollout" ? entry.value.as_bool()
                : entry.key == "eval"  ? entry.value.as_string() == "clean"
                                       : !entry.value.as_bool())
        << entry.key;
  EXPECT_EQ(noise_rule(read("aqn: {schedule: constant, sites: matmul_output}")).where->operator_pattern, "matmul");
}

TEST(ActivationNoise, StandsBeforeTheFaultsOrBehindThem) {
  const std::vector<numeric::Rule> faults = {
      numeric::parse_rule("zero() @ module=layer_output,layer=1", numeric::RuleUse::kInPlan)};
  AqnSpec spec = read("aqn: {schedule: constant, sites: layer_output}");
  EXPECT_EQ(with_noise(spec, faults).front().name, kNoiseRule);
  spec = read("aqn: {schedule: constant, sites: layer_output, order: after}");
  EXPECT_EQ(with_noise(spec, faults).back().name, kNoiseRule);
  const std::vector<numeric::Rule> taken = {
      numeric::parse_rule("zero(rule.name=aqn) @ module=layer_output", numeric::RuleUse::kInPlan)};
  EXPECT_NE(refusal_of([&] { with_noise(spec, taken); }).find("the noise's own"), std::string::npos);
}

TEST(AqnSection, TakesTheLayersFromAVerdict) {
  const TemporaryFolder directory;
  const auto write = [&](const std::string& text) {
    std::ofstream(directory.path() / "verdict.json") << text;
    return "aqn: {schedule: constant, layers: {from_verdict: " + (directory.path() / "verdict.json").string() + "}}";
  };
  const AqnSpec spec = read(write(R"({"layers": [15]})"));
  ASSERT_EQ(spec.layers.size(), 1u);
  EXPECT_EQ(spec.layers[0].first, 15);
  const AqnSpec diagnosed = read(write(R"({"verdict": "fault", "candidates": [{"layer": 7}, {"layer": 2}]})"));
  ASSERT_EQ(diagnosed.layers.size(), 1u) << "the one that is accused most";
  EXPECT_EQ(diagnosed.layers[0].first, 7);
  EXPECT_NE(refusal_of([&] { read(write(R"({"verdict": "healthy", "candidates": []})")); }).find("no layer is accused"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { read(write(R"({"candidates": [{"layer": -1}]})")); }).find("layer numbers"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { read(write("{}")); }).find("neither candidates nor layers"), std::string::npos);
  EXPECT_NE(refusal_of([&] { read(write("[]")); }).find("a JSON object"), std::string::npos);
  EXPECT_NE(refusal_of([&] { read(write(R"({"layers": ["a"]})")); }).find("layer numbers"), std::string::npos);
  EXPECT_NE(refusal_of([&] {
              read("aqn: {schedule: constant, layers: {from_verdict: /nowhere.json}}");
            }).find("/nowhere.json"),
            std::string::npos);
}

}  // namespace norm_noise_test
}  // namespace faultline::aqn
