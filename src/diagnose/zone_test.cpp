// The size of a dead zone in a verdict is that of the planted one, or an interval that holds it.
#include "diagnose/zone.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>

#include "diagnose/examination.h"
#include "diagnose/kind.h"
#include "lab/injection.h"

namespace faultline::diagnose {
namespace zone_test {

// A small model whose embeddings have one channel far above the others, as those of trained models do: in a row of it
// next to nothing lies near a threshold, and what was lost says little about where it is.
struct Machine {
  model::CausalLm model;
  std::unique_ptr<Examiner> examiner;

  Machine() : model(config(), 3, at::kBFloat16, at::kCPU) {
    const at::NoGradGuard no_gradients;
    for (const model::CausalLm::Parameter& parameter : model.parameters())
      if (parameter.name.find("embed") != std::string::npos) parameter.tensor->select(1, 5).fill_(40);
    examiner = std::make_unique<Examiner>(model, at::kCPU, 0, true);
  }

  static model::ModelConfig config() {
    model::ModelConfig config;
    config.vocabulary = 64, config.hidden = 64, config.layers = 3, config.heads = 4, config.kv_heads = 2;
    config.head_size = 16, config.inner = 96, config.context = 64, config.tied_output = true;
    return config;
  }

  Candidate accused(const std::string& method, const std::string& fault) {
    const Node recipe = recipe::recipe_of_rules({numeric::parse_rule(fault, numeric::RuleUse::kInPlan)}, 0);
    lab::Injection injection(recipe::read_plan_spec(recipe), model, site::Phase::kDiagnose, 1);
    injection.arm();
    const Diagnosis diagnosis = examiner->run({method, at::arange(48, at::kLong).unsqueeze(0), 1, 1});
    return diagnosis.fault_found() ? diagnosis.candidates[0] : Candidate{};
  }
};

// "about 0.05", "between 0.01 and 0.2" or "of at least 0.01"
std::pair<double, double> said(const std::string& detail) {
  std::smatch found;
  if (std::regex_search(detail, found, std::regex("about ([0-9.e+-]+)"))) {
    const double value = std::stod(found[1]);
    return {value / 1.1, value * 1.1};
  }
  if (std::regex_search(detail, found, std::regex("between ([0-9.e+-]+) and ([0-9.e+-]+)")))
    return {std::stod(found[1]), std::stod(found[2])};
  if (std::regex_search(detail, found, std::regex("at least ([0-9.e+-]+)"))) return {std::stod(found[1]), 1};
  return {0, 0};
}

TEST(Zone, OfAVerdictIsThePlantedOne) {
  Machine machine;
  for (const double planted : {0.003, 0.03, 0.05, 0.2}) {
    for (const std::string site : {"module=layer_output,layer=1", "module=down_proj,surface=output,layer=1"}) {
      const Candidate found = machine.accused("self", fmt::format("deadzone(threshold={}) @ {}", planted, site));
      ASSERT_EQ(found.kind, "deadzone") << planted << " " << site;
      EXPECT_NE(found.detail.find("of the row's largest"), std::string::npos) << found.detail;
      const auto [low, high] = said(found.detail);
      EXPECT_LE(low, planted) << site << ": " << found.detail;
      EXPECT_GE(high, planted) << site << ": " << found.detail;
      // Made answers lie close: over 32 octaves of a layer's output; less so over what 64 weights hold.
      EXPECT_LT(high, (site.starts_with("module=layer_output") ? 1.5 : 3) * low) << site << ": " << found.detail;
    }
  }
}

TEST(Zone, OfAShadowHoldsThePlantedOne) {  // a model's own activations leave a gap, and the verdict says so
  Machine machine;
  for (const double planted : {0.01, 0.05}) {
    const Candidate found =
        machine.accused("shadow", fmt::format("deadzone(threshold={}) @ module=layer_output,layer=1", planted));
    ASSERT_EQ(found.kind, "deadzone");
    const auto [low, high] = said(found.detail);
    EXPECT_LE(low, planted) << found.detail;
    EXPECT_GE(high, planted) << found.detail;
  }
}

TEST(Zone, PutsTheBoundsOfObservationsTogether) {
  Zone zone, other;
  zone.relative = {0.0004, 0.6};
  EXPECT_EQ(zone.words(), "threshold between 0.0004 and 0.6 of the row's largest");
  other.relative = {0.0495, 0.0505};
  zone.add(other);
  EXPECT_EQ(zone.words(), "threshold about 0.05 of the row's largest");
}

TEST(Zone, OfOneSizeInEveryRowIsAbsolute) {
  const at::Tensor scale = at::exp2(at::arange(16, at::kFloat)).unsqueeze(1);
  const at::Tensor expected = (scale * (at::arange(64, at::kFloat) + 1) / 64).to(at::kBFloat16);
  const at::Tensor observed = at::where(expected.abs().lt(8), at::zeros_like(expected), expected);
  const Kind kind = classify({"known answers", "linear", site::kNowhere, expected, observed}, 0, 64);
  EXPECT_EQ(kind.name, "deadzone");
  EXPECT_EQ(kind.detail, "threshold about 7.94, the same in every row");
}

}  // namespace zone_test
}  // namespace faultline::diagnose
