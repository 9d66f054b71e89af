#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "site/scope.h"
#include "train/actor.h"

namespace faultline::train {
namespace {

const std::vector<std::string> kTargets = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"};

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

std::vector<model::CausalLm::Parameter> add_lora(model::CausalLm& model, const LoraSpec& spec, uint64_t seed) {
  if (spec.rank < 1) throw UsageError(fmt::format("lora: the rank must be at least 1; got {}", spec.rank));
  for (const std::string& target : spec.targets) {
    if (std::find(kTargets.begin(), kTargets.end(), target) == kTargets.end())
      throw UsageError(fmt::format("lora: no linear is called '{}'{}", target, did_you_mean(target, kTargets)));
  }
  const std::vector<std::string>& targets = spec.targets.empty() ? kTargets : spec.targets;
  const at::NoGradGuard no_gradients;
  std::vector<model::CausalLm::Parameter> parameters;
  for (model::Linear* linear : model.linears()) {
    const std::string path = site::place_of(linear->place).path;
    if (std::find(targets.begin(), targets.end(), last_name(path)) == targets.end()) continue;
    const int64_t output = linear->weight.size(0), input = linear->weight.size(1);
    model::Linear::LowRank& adapter = linear->adapter;
    adapter.down_place = site::place_id(path + ".lora_a"), adapter.up_place = site::place_id(path + ".lora_b");
    const at::Generator generator = at::detail::createCPUGenerator(mix64(seed, hash64(path)));
    adapter.down =
        at::empty({spec.rank, input}, at::kFloat)
            .uniform_(-1 / std::sqrt(static_cast<double>(input)), 1 / std::sqrt(static_cast<double>(input)), generator)
            .to(linear->weight.options());
    adapter.up = at::zeros({output, spec.rank}, linear->weight.options());
    adapter.scale = spec.alpha / static_cast<double>(spec.rank);
    parameters.push_back({path + ".lora_a.weight", &adapter.down, adapter.down_place});
    parameters.push_back({path + ".lora_b.weight", &adapter.up, adapter.up_place});
    for (const model::CausalLm::Parameter* parameter : {&parameters[parameters.size() - 2], &parameters.back()})
      site::register_parameter(*parameter->tensor, parameter->place);
  }
  return parameters;
}

void merge_lora(model::CausalLm& model) {
  const at::NoGradGuard no_gradients;
  for (model::Linear* linear : model.linears()) {
    if (!linear->adapter.down.defined()) continue;
    const at::Tensor update = linear->adapter.up.to(at::kFloat).matmul(linear->adapter.down.to(at::kFloat));
    linear->weight.copy_(linear->weight.to(at::kFloat) + linear->adapter.scale * update);
    linear->adapter = {};
  }
}

}  // namespace faultline::train
