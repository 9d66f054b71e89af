#include "lab/training_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "model/memory.h"

namespace faultline::lab {
namespace {

double bytes_of_weights(const model::ModelConfig& config, at::ScalarType dtype, const train::TrainSpec& spec) {
  const auto size = static_cast<double>(c10::elementSize(dtype));
  const bool adapters = spec.lora.rank > 0;
  const auto all = static_cast<double>(parameters_of(config));
  const double trained = adapters ? static_cast<double>(adapter_elements(spec.lora, config)) : all;
  // Of what is trained: weights and gradients in its type, a reference; masters, two moments, the sum of gradients in
  // fp32.
  return (adapters ? all * size : 0) + trained * ((spec.stages.back().use_kl_loss ? 3 : 2) * size + 4 * sizeof(float));
}

// What else could be done with this model here.
std::string ways_out(const model::ModelConfig& config, at::ScalarType dtype, train::TrainSpec spec, int64_t available) {
  const bool trains_all = spec.lora.rank == 0;
  spec.lora.rank = 16;
  const auto needed = static_cast<int64_t>(bytes_of_weights(config, dtype, spec));
  return (trains_all && needed <= available
              ? fmt::format("Adapters fit here: '+train.lora.rank=16' takes {}. ", model::human_bytes(needed))
              : std::string()) +
         "Beyond one GPU's memory verl is the engine, under the same recipe:\n"
         "  FAULTLINE_RECIPE=recipe.yaml FAULTLINE_EVIDENCE=evidence VERL_USE_EXTERNAL_MODULES=faultline_verl \\\n"
         "  python -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 \u2026     # docs/from-verl.md";
}

}  // namespace

int64_t parameters_of(const model::ModelConfig& config) {
  return model::weight_bytes(config, at::kFloat) / static_cast<int64_t>(sizeof(float));
}

int64_t adapter_elements(const train::LoraSpec& spec, const model::ModelConfig& config) {
  const auto wanted = [&](const char* target) {
    return spec.targets.empty() || std::find(spec.targets.begin(), spec.targets.end(), target) != spec.targets.end();
  };
  const auto mlp = [&](int64_t inner) {
    return (wanted("gate_up_proj") ? config.hidden + 2 * inner : 0) + (wanted("down_proj") ? inner + config.hidden : 0);
  };
  const int64_t query = config.heads * config.head_size, key = config.kv_heads * config.head_size;
  int64_t features = 0;  // inputs and outputs of the linears
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    features += wanted("qkv_proj") ? config.hidden + query + 2 * key : 0;
    features += wanted("o_proj") ? query + config.hidden : 0;
    if (!config.is_sparse_layer(layer)) {
      features += mlp(config.inner);
      continue;
    }
    features += config.moe.experts * mlp(config.moe.expert_size);
    if (config.moe.shared_expert_size > 0) features += mlp(config.moe.shared_expert_size);
  }
  return spec.rank * features;
}

TrainingMemory training_memory(const model::ModelConfig& config, at::ScalarType dtype, const train::TrainSpec& spec,
                               int64_t tokens, int64_t head_positions) {
  const train::StageSpec& stage = spec.stages.back();
  const auto size = static_cast<double>(c10::elementSize(dtype));
  TrainingMemory memory;
  memory.weights_and_optimizer = bytes_of_weights(config, dtype, spec);
  memory.cache = static_cast<double>(2 * config.layers * config.kv_heads * config.head_size *
                                     std::min(stage.slots, stage.sequences()) * tokens) *
                 size;
  // Per token and layer, what backward needs: about 12 vectors of the hidden size and 4 of the inner one.
  memory.activations =
      static_cast<double>(stage.rows() * tokens * config.layers * (12 * config.hidden + 4 * config.inner)) * size;
  memory.logits =
      static_cast<double>(std::min(head_positions, stage.rows() * stage.max_new_tokens) * config.vocabulary) *
      (size + 3 * sizeof(float));
  return memory;
}

void refuse_training_that_does_not_fit(const std::string& name, const model::ModelConfig& config, at::ScalarType dtype,
                                       const train::TrainSpec& spec, int64_t available) {
  const auto needed = static_cast<int64_t>(bytes_of_weights(config, dtype, spec));
  if (needed <= available) return;
  throw UsageError(fmt::format(
      "{}: to train {} its {} parameters takes {} for weights, gradients and optimizer alone, and {} are available. {}",
      name, spec.lora.rank > 0 ? "adapters of" : "all of", format_count(parameters_of(config)),
      model::human_bytes(needed), model::human_bytes(available), ways_out(config, dtype, spec, available)));
}

}  // namespace faultline::lab
