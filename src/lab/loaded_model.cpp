#include "lab/loaded_model.h"

#include <ATen/Context.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "lab/model_source.h"
#include "model/checkpoint/gguf.h"
#include "task/task.h"

namespace faultline::lab {

model::Tokenizer load_tokenizer(const std::filesystem::path& model) {
  if (!std::filesystem::is_directory(model)) return model::Tokenizer::from_gguf(model::GgufFile(model));
  const std::filesystem::path file = model / "tokenizer.json";
  if (!std::filesystem::exists(file))
    throw UsageError(fmt::format("{} has no tokenizer.json; copy it from the model's origin", model.string()));
  return model::Tokenizer::from_file(file);
}

// Note [Attention without plans]: on the newer GPUs torch prefers cuDNN's attention, which builds a plan for every new
// shape (half a second forward, half a second backward). Our micro-batches and prefills seldom have the same shape
// twice; flash attention needs no plan.
LoadedModel load_model(const std::string& name, const LoadOptions& options) {
  if (options.device.is_cuda()) at::globalContext().setSDPUseCuDNN(false);
  if (std::optional<LoadedModel> other = model_from_elsewhere(name, options)) return std::move(*other);
  const std::unique_ptr<model::Checkpoint> checkpoint = model::open_checkpoint(name);
  LoadedModel loaded{checkpoint->path(), nullptr, load_tokenizer(checkpoint->path())};
  refuse_other_tokenizer(loaded, checkpoint->config());
  loaded.model = std::make_unique<model::CausalLm>(*checkpoint, options.dtype, options.device, options.progress);
  return loaded;
}

std::vector<at::Tensor> example_prompts(const LoadedModel& loaded, int64_t count, uint64_t seed) {
  std::vector<at::Tensor> prompts;
  for (const task::Problem& problem : task::arithmetic("test", count, {seed, 2})) {
    const std::vector<int64_t> tokens = loaded.tokenizer.encode(problem.question);
    prompts.push_back(at::tensor(tokens, at::kLong).unsqueeze(0).to(loaded.model->device()));
  }
  return prompts;
}

}  // namespace faultline::lab
