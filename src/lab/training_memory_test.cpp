#include "lab/training_memory.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "train/tiny_model.h"

namespace faultline::lab {
namespace {

train::TrainSpec spec_of(int64_t rank) {
  train::TrainSpec spec;
  spec.stages = {train::tiny_grpo(2)};
  spec.lora.rank = rank;
  return spec;
}

std::string refusal(const train::TrainSpec& spec, int64_t available) {
  try {
    refuse_training_that_does_not_fit("tiny", train::tiny_config(), at::kBFloat16, spec, available);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(TrainingMemory, CountsTheParametersAndAdaptersThatTheModelHas) {
  model::CausalLm model = train::tiny_model();
  int64_t parameters = 0;
  for (const auto& parameter : model.parameters()) parameters += parameter.tensor->numel();
  EXPECT_EQ(parameters_of(train::tiny_config()), parameters);
  for (const std::vector<std::string>& targets : {std::vector<std::string>{}, {"qkv_proj", "down_proj"}, {"o_proj"}}) {
    const train::LoraSpec lora{4, 16, targets};
    int64_t elements = 0;
    for (const auto& parameter : train::add_lora(model, lora, 0)) elements += parameter.tensor->numel();
    EXPECT_EQ(adapter_elements(lora, train::tiny_config()), elements);
  }
}

TEST(TrainingMemory, RefusesWhatWeightsAndOptimizerAloneDoNotFitAndSaysWhatWould) {
  const int64_t all = parameters_of(train::tiny_config()) * (2 * 2 + 4 * 4);
  EXPECT_EQ(refusal(spec_of(0), all), "");
  const std::string said = refusal(spec_of(0), all - 1);
  for (const char* word : {"tiny: to train all of its", "Adapters fit here: '+train.lora.rank=16'",
                           "verl is the engine", "python -m verl.trainer.main_ppo"})
    EXPECT_NE(said.find(word), std::string::npos) << said;
  const auto adapters = [](int64_t rank) {
    return static_cast<int64_t>(
        training_memory(train::tiny_config(), at::kBFloat16, spec_of(rank), 0, 1).weights_and_optimizer);
  };
  EXPECT_EQ(refusal(spec_of(2), adapters(2)), "");
  EXPECT_EQ(refusal(spec_of(2), adapters(2) - 1).find("Adapters fit here"), std::string::npos);
  EXPECT_LT(adapters(2), all);
}

}  // namespace
}  // namespace faultline::lab
