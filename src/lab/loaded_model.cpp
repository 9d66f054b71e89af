#include "lab/loaded_model.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include "base/error.h"
#include "model/gguf.h"

namespace faultline {

Tokenizer load_tokenizer(const std::filesystem::path& model) {
  if (!std::filesystem::is_directory(model)) return Tokenizer::from_gguf(GgufFile(model));
  const std::filesystem::path file = model / "tokenizer.json";
  if (!std::filesystem::exists(file))
    throw UsageError(fmt::format("{} has no tokenizer.json; copy it from the model's origin", model.string()));
  return Tokenizer::from_file(file);
}

// Note [Attention without plans]: on the newer GPUs torch prefers cuDNN's attention, which builds a plan for every new
// shape (half a second forward, half a second backward). Our micro-batches and prefills seldom have the same shape
// twice; flash attention needs no plan.
LoadedModel load_model(const std::string& name, const LoadOptions& options) {
  if (options.device.is_cuda()) at::globalContext().setSDPUseCuDNN(false);
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(name);
  LoadedModel loaded{checkpoint->path(), nullptr, load_tokenizer(checkpoint->path())};
  const int64_t known = loaded.tokenizer.vocabulary_size(), rows = checkpoint->config().vocabulary;
  if (known > rows)
    throw UsageError(
        fmt::format("{}: the tokenizer knows {} tokens, the embedding only {}; they belong to different models",
                    loaded.path.string(), known, rows));
  loaded.model = std::make_unique<CausalLm>(*checkpoint, options.dtype, options.device, options.progress);
  return loaded;
}

}  // namespace faultline
