// Each detector finds what was planted and is silent on a clean machine; each kind is told from its picture.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/json.h"
#include "diagnose/examination.h"
#include "diagnose/kind.h"
#include "diagnose/methods.h"
#include "lab/injection.h"
#include "numeric/apply.h"

namespace faultline::diagnose {
namespace diagnose_test {

model::ModelConfig tiny_config(int64_t layers = 6) {
  model::ModelConfig config;
  config.vocabulary = 64, config.hidden = 64, config.layers = layers, config.heads = 4, config.kv_heads = 2;
  config.head_size = 16, config.inner = 96, config.context = 64, config.tied_output = true;
  return config;
}

struct Machine {
  model::CausalLm model;
  Examiner examiner;
  at::Tensor tokens = at::arange(12, at::kLong).unsqueeze(0);

  explicit Machine(at::ScalarType dtype = at::kBFloat16, int64_t layers = 6) : Machine(tiny_config(layers), dtype) {}
  explicit Machine(const model::ModelConfig& config, at::ScalarType dtype = at::kBFloat16)
      : model(config, 3, dtype, at::kCPU), examiner(model, at::kCPU, 0, true) {}

  Diagnosis diagnose(const std::string& method, const std::vector<std::string>& faults = {}, int64_t passes = 1,
                     uint64_t seed = 1) {
    std::unique_ptr<lab::Injection> injection;
    if (!faults.empty()) {
      std::vector<numeric::Rule> rules;
      for (const std::string& fault : faults) rules.push_back(numeric::parse_rule(fault, numeric::RuleUse::kInPlan));
      for (std::size_t i = 0; i < rules.size(); ++i) rules[i].name += std::to_string(i);
      const recipe::PlanSettings settings = recipe::read_plan_spec(recipe::recipe_of_rules({}, seed)).settings;
      injection = std::make_unique<lab::Injection>(recipe::PlanSpec{rules, settings}, model, site::Phase::kDiagnose, 1);
      injection->arm();
    }
    return examiner.run({method, tokens, seed, passes});
  }
};

struct Found {
  std::string fault, place, kind;
};

class FindsAPlantedFault : public testing::TestWithParam<Found> {};

TEST_P(FindsAPlantedFault, ByItsOwnAnswers) {
  Machine machine;
  const Diagnosis diagnosis = machine.diagnose("self", {GetParam().fault});
  ASSERT_TRUE(diagnosis.fault_found());
  EXPECT_EQ(diagnosis.candidates.size(), 1u);
  EXPECT_EQ(diagnosis.candidates[0].place, GetParam().place);
  EXPECT_EQ(diagnosis.candidates[0].kind, GetParam().kind) << diagnosis.candidates[0].detail;
}

TEST_P(FindsAPlantedFault, ByItsShadow) {
  Machine machine;
  const Diagnosis diagnosis = machine.diagnose("shadow", {GetParam().fault});
  ASSERT_TRUE(diagnosis.fault_found());
  EXPECT_EQ(diagnosis.candidates.size(), 1u);
  EXPECT_EQ(diagnosis.candidates[0].place, GetParam().place);
}

INSTANTIATE_TEST_SUITE_P(
    Sites, FindsAPlantedFault,
    testing::Values(Found{"gain(strength=0.01) @ module=layer_output,layer=2", "model.layers.2", "gain"},
                    Found{"deadzone(threshold=0.05) @ module=layer_output,layer=0", "model.layers.0", "deadzone"},
                    Found{"relative_gaussian(strength=0.05) @ module=layer_output,layer=5", "model.layers.5", "noise"},
                    Found{"offset(strength=0.1) @ module=down_proj,surface=output,layer=3",
                          "model.layers.3.mlp.down_proj", "offset"},
                    Found{"saturate(margin=0.3) @ module=q_proj,surface=output,layer=1",
                          "model.layers.1.self_attn.q_proj", "saturate"},
                    Found{"stuck_at(bit=3, value=1) @ module=act_fn,surface=output,layer=4",
                          "model.layers.4.mlp.act_fn", "stuck_at"},
                    Found{"gain(strength=0.05) @ module='*input_layernorm',surface=output,layer=2",
                          "model.layers.2.input_layernorm", "gain"},
                    Found{"stuck_at(bit=3, value=1, extent.fraction=0.1, extent.structure=channel) @ "
                          "module='*input_layernorm',surface=output,layer=2",
                          "model.layers.2.input_layernorm", "stuck_at"},
                    Found{"quantize(format=mxfp4) @ module=gate_proj,surface=output,layer=2",
                          "model.layers.2.mlp.gate_proj", "quantize"},
                    Found{"gain(strength=0.05) @ operator=attention,layer=3", "model.layers.3.self_attn", "gain"},
                    Found{"spike(probability=0.02) @ operator=attention,layer=3", "model.layers.3.self_attn",
                          "spike"}));

// Lesson 37: a healthy model was diagnosed as faulty, every time.
TEST(Healthy, IsSilentInEveryTypeUnderManySeeds) {
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    Machine machine(dtype);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      machine.tokens = (at::arange(5 + 7 * static_cast<int64_t>(seed), at::kLong) * 7 % 64).unsqueeze(0);
      EXPECT_FALSE(machine.diagnose("self", {}, 1, seed).fault_found());
      const Diagnosis shadow = machine.diagnose("shadow", {}, 1, seed);
      EXPECT_FALSE(shadow.fault_found());
      EXPECT_TRUE(shadow.not_tested.empty());
      EXPECT_GT(shadow.relations, 50);
    }
  }
}

// Lesson 38: one layer, one prompt, one seed per claim.
TEST(Self, FindsAFaultInEveryLayer) {
  Machine machine;
  for (int64_t layer = 0; layer < 6; ++layer) {
    const std::string fault = "saturate(margin=0.3) @ module=layer_output,layer=" + std::to_string(layer);
    const Diagnosis diagnosis = machine.diagnose("self", {fault}, 1, static_cast<uint64_t>(layer));
    ASSERT_EQ(diagnosis.candidates.size(), 1u) << layer;
    EXPECT_EQ(diagnosis.candidates[0].layer, layer);
  }
}

TEST(Self, ReportsTwoFaultyLayers) {
  Machine machine;
  const Diagnosis diagnosis =
      machine.diagnose("self", {"gain(strength=0.05) @ module=layer_output,layer=1",
                                "deadzone(threshold=0.05) @ module=o_proj,surface=output,layer=4"});
  ASSERT_EQ(diagnosis.candidates.size(), 2u);
  const std::set<int64_t> layers = {diagnosis.candidates[0].layer, diagnosis.candidates[1].layer};
  EXPECT_EQ(layers, (std::set<int64_t>{1, 4}));
}

TEST(Self, WaitsForAnIntermittentFault) {
  Machine machine;
  int64_t found = 0;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const std::string fault =
        "gain(strength=0.05, lifetime.kind=transient, lifetime.probability=0.1) @ module=layer_output,layer=3";
    const Diagnosis diagnosis = machine.diagnose("self", {fault}, 64, seed);
    found += diagnosis.fault_found() && diagnosis.candidates[0].layer == 3;
  }
  EXPECT_EQ(found, 5);
}

TEST(Self, SaysWhatCouldNotBeTested) {
  Machine machine;
  machine.model.linears()[0]->weight.fill_(std::nan(""));
  const Diagnosis diagnosis = machine.diagnose("self");
  ASSERT_FALSE(diagnosis.not_tested.empty());
  EXPECT_NE(diagnosis.not_tested[0].find("not finite"), std::string::npos);
  EXPECT_NE(to_json(diagnosis)["verdict"], "healthy");
  const Diagnosis shadow = machine.diagnose("shadow");
  EXPECT_FALSE(shadow.not_tested.empty());
}

TEST(Self, WorksWithOneTokenAndOneLayer) {
  Machine machine(at::kBFloat16, 1);
  machine.tokens = at::zeros({1, 1}, at::kLong);
  EXPECT_FALSE(machine.diagnose("self").fault_found());
  EXPECT_FALSE(machine.diagnose("shadow").fault_found());
  EXPECT_TRUE(machine.diagnose("self", {"gain(strength=0.05) @ module=layer_output,layer=0"}).fault_found());
}

TEST(Healthy, IsSilentInBatches) {
  Machine machine;
  machine.tokens = (at::arange(30, at::kLong) * 11 % 64).reshape({3, 10});
  EXPECT_FALSE(machine.diagnose("self").fault_found());
  EXPECT_FALSE(machine.diagnose("shadow").fault_found());
}

TEST(Self, DoesNotTakeBiasesForOffsets) {
  model::ModelConfig config = tiny_config(3);
  config.architecture = model::Architecture::kQwen2;
  config.attention_bias = true;
  Machine machine(config);
  for (model::CausalLm::Parameter& one : machine.model.parameters())
    if (one.name.ends_with(".bias")) one.tensor->fill_(0.25);
  const Diagnosis diagnosis = machine.diagnose("self");
  EXPECT_FALSE(diagnosis.fault_found());
  EXPECT_EQ(to_json(diagnosis)["verdict"], "healthy_where_tested");
  const Diagnosis broken = machine.diagnose("self", {"gain(strength=0.05) @ module=k_proj,surface=output,layer=1"});
  ASSERT_TRUE(broken.fault_found());
  EXPECT_EQ(broken.candidates[0].layer, 1);
}

// All experts score alike: which are chosen is arbitrary, and no fault.
TEST(Self, IsNotMisledByRoutingTies) {
  model::ModelConfig config = tiny_config(3);
  config.architecture = model::Architecture::kQwen3Moe;
  config.moe.experts = 4, config.moe.experts_per_token = 2, config.moe.expert_size = 32;
  Machine machine(config);
  for (model::CausalLm::Parameter& one : machine.model.parameters())
    if (one.name.ends_with("mlp.gate.weight")) one.tensor->fill_(0.5);
  const Diagnosis diagnosis = machine.diagnose("self");
  EXPECT_FALSE(diagnosis.fault_found());
  EXPECT_NE(to_json(diagnosis)["verdict"], "healthy");
}

TEST(AMachine, ThatFailsInTheMiddleIsNotHealthy) {
  for (const std::string method : {"self", "shadow"}) {
    Machine machine;
    EXPECT_FALSE(machine.diagnose(method).fault_found());
    machine.model.linears()[9]->weight = at::zeros({3, 5}, at::kBFloat16);  // what reads it throws
    const Diagnosis diagnosis = machine.diagnose(method);
    EXPECT_TRUE(diagnosis.broken_off);
    EXPECT_EQ(to_json(diagnosis)["verdict"], "not_tested");
    EXPECT_NE(diagnosis.not_tested[0].find("failed in the middle"), std::string::npos);
  }
}

struct Flip {
  at::ScalarType dtype;
  int bit;
};

class Edges : public testing::TestWithParam<Flip> {
 public:
  static void expect_only_layer(int64_t layer, const std::string& where) {
    for (const std::string how : {"rate=1", "rate=0.02"}) {
      const std::string fault = fmt::format("bitflip(bit={}, {}) @ {}", GetParam().bit, how, where);
      for (const std::string method : {"self", "shadow"}) {
        Machine machine(GetParam().dtype);
        const Diagnosis diagnosis = machine.diagnose(method, {fault}, 16);
        ASSERT_TRUE(diagnosis.fault_found()) << method << " " << fault;
        for (const Candidate& candidate : diagnosis.candidates)
          EXPECT_EQ(candidate.layer, layer) << method << " " << fault << ": " << candidate.place;
      }
    }
  }
};

// Lesson 74: overflow inside an operator was taken for its fault, so the layers behind a flip were accused.
TEST_P(Edges, AccuseTheLayerWhoseOutputLeftTheRangeAndNoneBehindIt) {
  expect_only_layer(2, "module=layer_output,layer=2");
}
TEST_P(Edges, AccuseTheOperatorThatLeftTheRange) { expect_only_layer(1, "operator=matmul,layer=1"); }

INSTANTIATE_TEST_SUITE_P(Bits, Edges,
                         testing::Values(Flip{at::kBFloat16, 14}, Flip{at::kBFloat16, 12}, Flip{at::kBFloat16, 15},
                                         Flip{at::kHalf, 14}, Flip{at::kHalf, 15}, Flip{at::kFloat, 30},
                                         Flip{at::kFloat, 27}, Flip{at::kFloat, 31}));

TEST(Untested, IsNeverHealthy) {
  Diagnosis diagnosis;
  EXPECT_EQ(verdict_of(diagnosis), "not_tested");
  diagnosis.relations = 3, diagnosis.elements = 100;
  EXPECT_EQ(verdict_of(diagnosis), "healthy");
  diagnosis.untested = {{-1, 1, 10}, {3, 30, 100}, {4, 90, 100}, {5, 10, 100}};
  say_untested(diagnosis);
  EXPECT_EQ(verdict_of(diagnosis), "healthy_where_tested");
  EXPECT_NE(diagnosis.not_tested[0].find("outside the layers (10.0 %), layers 3 to 5 (10.0 to 90.0 %)"),
            std::string::npos)
      << diagnosis.not_tested[0];
  EXPECT_EQ(to_json(diagnosis)["untested"]["elements"], 131);
}

// A prompt that is broken before the first layer leaves only made inputs to ask with, and that is said.
TEST(Untested, IsTheShareOfAPromptThatCouldNotBeAsked) {
  Machine machine;
  machine.model.parameters()[0].tensor->select(0, 3).fill_(1e30);  // the embedding of the fourth token
  for (const std::string method : {"self", "shadow"}) {
    const Diagnosis diagnosis = machine.diagnose(method);
    EXPECT_FALSE(diagnosis.fault_found()) << method << " " << diagnosis.candidates.at(0).place;
    EXPECT_EQ(verdict_of(diagnosis), "healthy_where_tested");
    EXPECT_GT(to_json(diagnosis)["untested"]["share"].get<double>(), 0);
  }
}

TEST(Evidence, DrawsTheResidual) {
  Machine machine;
  const Diagnosis dead = machine.diagnose("self", {"deadzone(threshold=0.05) @ module=layer_output,layer=1"});
  ASSERT_TRUE(dead.fault_found());
  for (const Evidence::Bin& bin : dead.candidates[0].evidence[0].picture) {
    if (bin.to <= 0.03) {
      EXPECT_EQ(bin.wrong, bin.elements);
    }
    if (bin.from >= 0.1) {
      EXPECT_EQ(bin.wrong, 0);
    }
  }
  const Diagnosis gain = machine.diagnose("self", {"gain(strength=0.05) @ module=layer_output,layer=1"});
  ASSERT_TRUE(gain.fault_found());
  const Evidence::Bin& top = gain.candidates[0].evidence[0].picture.back();
  EXPECT_EQ(top.wrong, top.elements);
  EXPECT_NEAR(top.ratio, 1.05, 0.01);
}

TEST(Self, NamesTheLayerForAFewForwards) {
  Machine machine;
  machine.tokens = (at::arange(24, at::kLong) * 7 % 64).unsqueeze(0);
  const Diagnosis diagnosis = machine.diagnose("self");
  EXPECT_LE(diagnosis.layer_forwards, 8);
  EXPECT_GT(diagnosis.forwards, diagnosis.layer_forwards);
}

TEST(Classic, GivesTheSameScoresFromCachedInputs) {
  Machine machine;
  const at::Tensor tokens = machine.tokens;
  const Diagnosis cached = diagnose_classic(machine.model, {tokens, 5, true});
  const Diagnosis whole = diagnose_classic(machine.model, {tokens, 5, false});
  EXPECT_NEAR(whole.forwards, 11.0 * 6, 1e-9);
  EXPECT_LT(cached.forwards, 7);
  ASSERT_EQ(cached.candidates.size(), whole.candidates.size());
  for (std::size_t i = 0; i < cached.candidates.size(); ++i)
    EXPECT_EQ(cached.candidates[i].score, whole.candidates[i].score);
}

// Lesson 39: a spread of nearly nothing made a z of 9.7e5.
TEST(Classic, BoundsItsScores) {
  const std::vector<double> z = robust_z({0, 0, 0, 0, 1});
  EXPECT_LE(z.back(), 1e3);
  EXPECT_EQ(z.front(), 0);
}

// Lesson 40: the gain was the probe divided by itself, 1 whatever the layer does.
TEST(Classic, MeasuresAGainThatADeadZoneLowers) {
  std::vector<LayerScore> probes(8);
  for (LayerScore& probe : probes) probe.gain = 1;
  probes[4].gain = 0.4;
  EXPECT_EQ(score_layers(probes)[4].kind, "deadzone");
  EXPECT_EQ(score_layers(probes)[3].score, 0);
}

// The same through the product: what a layer does to a small change of its input is measured, not assumed.
TEST(Classic, FindsTheLayerWhoseDeadZoneSwallowsSmallChanges) {
  const auto accused = [](const std::vector<std::string>& faults) {
    Machine machine(at::kFloat, 12);
    std::set<int64_t> layers;
    for (const Candidate& candidate : machine.diagnose("classic", faults).candidates)
      if (candidate.kind == "deadzone") layers.insert(candidate.layer);
    return layers;
  };
  EXPECT_FALSE(accused({}).contains(6));
  for (const double share : {0.25, 0.5})  // of the channels, in which nothing is left
    EXPECT_TRUE(accused({fmt::format("deadzone(threshold=1, relative_to=none, extent.fraction={}, "
                                     "extent.structure=channel) @ module=layer_output,layer=6",
                                     share)})
                    .contains(6))
        << share;
}

// Lesson 41: a mask that is redrawn each call made a broken unit look like noise. Ours stays, and it is told so.
TEST(Kind, OfABrokenUnitIsNotNoise) {
  Machine machine;
  const Diagnosis diagnosis = machine.diagnose(
      "self", {"zero(extent.fraction=0.1, extent.structure=channel) @ module=up_proj,surface=output,layer=2"});
  ASSERT_EQ(diagnosis.candidates.size(), 1u);
  EXPECT_EQ(diagnosis.candidates[0].kind, "zero");
  EXPECT_FALSE(diagnosis.candidates[0].intermittent);
}

struct Named {
  std::string fault, kind;
};
class Pictures : public testing::TestWithParam<Named> {};

TEST_P(Pictures, NameTheirKind) {
  const at::Tensor x = at::randn({24, 160}, at::detail::createCPUGenerator(7)).to(at::kBFloat16);
  for (const std::string extent : {"", ", extent.fraction=0.2, extent.structure=channel"}) {
    const bool first = GetParam().fault.ends_with("(") && !extent.empty();
    const numeric::Rule rule =
        numeric::parse_rule(GetParam().fault + extent.substr(first ? 2 : 0) + ")", numeric::RuleUse::kOnTensor);
    Observation observation{"test", "linear", site::place_id("model.layers.1"), x.to(at::kDouble), x.clone()};
    numeric::apply_(observation.observed, rule, {1, "site"}, {0, 0, {}});
    observation.repetitions.push_back(x.clone());
    numeric::apply_(observation.repetitions[0], rule, {1, "site"}, {0, 1, {}});
    EXPECT_EQ(classify(observation, 0, 160).name, GetParam().kind) << GetParam().fault << extent;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Pictures,
    testing::Values(Named{"deadzone(threshold=0.05", "deadzone"}, Named{"saturate(margin=0.3", "saturate"},
                    Named{"gain(strength=0.01", "gain"}, Named{"offset(strength=0.1", "offset"}, Named{"zero(", "zero"},
                    Named{"systematic_bias(strength=0.05", "systematic_bias"},
                    Named{"relative_gaussian(strength=0.05", "noise"}, Named{"spike(probability=0.01", "spike"},
                    Named{"stuck_at(bit=3, value=1", "stuck_at"}, Named{"stuck_at(bit=8, value=0", "stuck_at"},
                    Named{"quantize(format=mxfp4", "quantize"}, Named{"nan(", "nan"}));

TEST(HalfUlp, IsHalfTheDistanceToTheNextNumber) {
  const at::Tensor x = at::tensor({1.0, 1.99, 2.0, 0.75, 0.0}, at::kDouble);
  const at::Tensor half = half_ulp(x, at::kBFloat16);
  EXPECT_EQ(half[0].item<double>(), 0x1p-8);
  EXPECT_EQ(half[1].item<double>(), 0x1p-8);
  EXPECT_EQ(half[2].item<double>(), 0x1p-7);
  EXPECT_EQ(half[3].item<double>(), 0x1p-9);
  EXPECT_GT(half[4].item<double>(), 0);
}

}  // namespace diagnose_test
}  // namespace faultline::diagnose
