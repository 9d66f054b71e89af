// What a model's name may mean beside files of a model: a checkpoint of our own trainer (RUN/checkpoints/step-000040,
// which holds fp32 masters alone; the run's manifest says what they belong to) or random weights of a shape
// (random:FOLDER, of which config.json and the tokenizer are enough, or random:qwen2.5-7b, with the default model's
// tokenizer): what a model of that size costs before anybody has fetched it.
#pragma once

#include <optional>

#include "lab/loaded_model.h"

namespace faultline::lab {

// Nothing where the name means files. The policy of a checkpoint is as it was at that step, adapters merged; random
// weights are the same each time. UsageError where a run's type is not options.dtype, its manifest is gone, a whole run
// was named in place of a checkpoint, or no shape is called that; RuntimeFailure where a checkpoint is damaged.
std::optional<LoadedModel> model_from_elsewhere(const std::string& name, const LoadOptions& options);

model::ModelConfig config_of(const std::string& name);  // of files or a shape, without reading weights

void refuse_other_tokenizer(const LoadedModel& loaded, const model::ModelConfig& config);  // UsageError

}  // namespace faultline::lab
