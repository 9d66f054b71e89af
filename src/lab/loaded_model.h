// A model with its tokenizer, from one name.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/causal_lm.h"
#include "model/tokenizer/tokenizer.h"

namespace faultline::lab {

struct LoadedModel {
  std::filesystem::path path;
  std::unique_ptr<model::CausalLm> model;
  model::Tokenizer tokenizer;
};

struct LoadOptions {
  at::ScalarType dtype = at::kBFloat16;
  at::Device device = at::kCPU;
  std::function<void(double)> progress = {};
};

// "default", a folder or a .gguf file.
LoadedModel load_model(const std::string& name, const LoadOptions& options);

// Word problems as (1, T) tokens on the model's device: something to run it on.
std::vector<at::Tensor> example_prompts(const LoadedModel& loaded, int64_t count, uint64_t seed);

model::Tokenizer load_tokenizer(const std::filesystem::path& model);

}  // namespace faultline::lab
