// Our own model as operators (torch.ops.faultline.model_*), so that Python tests hold it against transformers and
// benchmarks run both in one process.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <map>
#include <mutex>

#include "base/error.h"
#include "model/causal_lm.h"
#include "model/generate.h"
#include "site/torch_support.h"

namespace faultline {
namespace {

struct OpenModel {
  std::unique_ptr<model::CausalLm> model;
  std::map<std::pair<int64_t, std::pair<bool, std::vector<int64_t>>>, std::unique_ptr<model::Generator>> generators;
};
struct OpenModels {
  std::mutex mutex;
  int64_t next = 1;
  std::map<int64_t, OpenModel> models;
};
OpenModels& open_models() {
  static auto* all = new OpenModels;
  return *all;
}

OpenModel& opened(int64_t handle) {
  const std::lock_guard<std::mutex> lock(open_models().mutex);
  const auto found = open_models().models.find(handle);
  if (found == open_models().models.end()) throw UsageError("there is no open model of this number");
  return found->second;
}

int64_t keep(std::unique_ptr<model::CausalLm> model) {
  const std::lock_guard<std::mutex> lock(open_models().mutex);
  const int64_t handle = open_models().next++;
  open_models().models[handle].model = std::move(model);
  return handle;
}

int64_t model_open(const std::string& name, at::ScalarType dtype, at::Device device) {
  return site::translated(
      [&] { return keep(std::make_unique<model::CausalLm>(*model::open_checkpoint(name), dtype, device)); });
}

// config: the text of a config.json.
int64_t model_random(const std::string& config, int64_t seed, at::ScalarType dtype, at::Device device) {
  return site::translated([&] {
    const model::ModelConfig read = model::read_config(parse_json_text(config, "config"), "config");
    return keep(std::make_unique<model::CausalLm>(read, static_cast<uint64_t>(seed), dtype, device));
  });
}

void model_close(int64_t handle) {
  const std::lock_guard<std::mutex> lock(open_models().mutex);
  open_models().models.erase(handle);
}

at::Tensor model_logits(int64_t handle, const at::Tensor& tokens) {  // (B, T) -> (B, T, vocabulary)
  return site::translated([&] {
    const model::CausalLm& model = *opened(handle).model;
    return model.logits(model.hidden_states(tokens)).reshape({tokens.size(0), tokens.size(1), -1});
  });
}

// The weights themselves, not copies: a test may ask for gradients.
std::vector<at::Tensor> model_parameters(int64_t handle) {
  return site::translated([&] {
    std::vector<at::Tensor> tensors;
    for (const model::CausalLm::Parameter& parameter : opened(handle).model->parameters())
      tensors.push_back(*parameter.tensor);
    return tensors;
  });
}
std::vector<std::string> model_parameter_names(int64_t handle) {
  return site::translated([&] {
    std::vector<std::string> names;
    for (const model::CausalLm::Parameter& parameter : opened(handle).model->parameters())
      names.push_back(parameter.name);
    return names;
  });
}

// Prompts one after another in `tokens`, `lengths` of each. -> tokens (prompts, max_new), -1 behind the end, and their
// log-probabilities. A generator is kept for its slots and end tokens, so that its memory and graph serve later calls.
std::tuple<at::Tensor, at::Tensor> model_generate(int64_t handle, at::IntArrayRef tokens, at::IntArrayRef lengths,
                                                  int64_t max_new_tokens, double temperature, int64_t top_k,
                                                  double top_p, int64_t seed, int64_t slots, at::IntArrayRef ends,
                                                  bool graphs) {
  return site::translated([&] {
    OpenModel& open = opened(handle);
    auto& generator = open.generators[{slots, {graphs, ends.vec()}}];
    if (!generator) {
      model::GenerateOptions options;
      options.slots = slots;
      options.end_tokens = ends.vec();
      options.graphs = graphs;
      generator = std::make_unique<model::Generator>(*open.model, options);
    }
    std::vector<model::Request> requests;
    std::size_t first = 0;
    for (const int64_t length : lengths) {
      const auto count = static_cast<std::size_t>(length);
      requests.push_back({tokens.slice(first, count).vec(),
                          max_new_tokens,
                          static_cast<uint64_t>(seed) + requests.size(),
                          {temperature, top_k, top_p}});
      first += count;
    }
    const std::vector<model::Completion> completions = generator->run(requests);
    const auto count = std::ssize(completions);
    at::Tensor made = at::full({count, max_new_tokens}, -1, at::kLong), chances = at::zeros({count, max_new_tokens});
    for (int64_t i = 0; i < count; ++i) {
      const model::Completion& completion = completions[static_cast<std::size_t>(i)];
      std::copy(completion.tokens.begin(), completion.tokens.end(),
                made.mutable_data_ptr<int64_t>() + i * max_new_tokens);
      std::copy(completion.log_probabilities.begin(), completion.log_probabilities.end(),
                chances.mutable_data_ptr<float>() + i * max_new_tokens);
    }
    return std::tuple(made, chances);
  });
}

TORCH_LIBRARY_FRAGMENT(faultline_testing, m) {
  m.def("model_open(str name, ScalarType dtype, Device device) -> int", model_open);
  m.def("model_random(str config, int seed, ScalarType dtype, Device device) -> int", model_random);
  m.def("model_close(int handle) -> ()", model_close);
  m.def("model_parameters(int handle) -> Tensor[]", model_parameters);
  m.def("model_parameter_names(int handle) -> str[]", model_parameter_names);
  m.def("model_logits(int handle, Tensor tokens) -> Tensor", model_logits);
  m.def(
      "model_generate(int handle, int[] tokens, int[] lengths, int max_new_tokens, float temperature, int top_k, "
      "float top_p, int seed, int slots, int[] ends, bool graphs) -> (Tensor, Tensor)",
      model_generate);
}

}  // namespace
}  // namespace faultline
