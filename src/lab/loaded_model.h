// A model with its tokenizer, from one name.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "model/causal_lm.h"
#include "model/tokenizer.h"

namespace faultline {

struct LoadedModel {
  std::filesystem::path path;
  std::unique_ptr<CausalLm> model;
  Tokenizer tokenizer;
};

struct LoadOptions {
  at::ScalarType dtype = at::kBFloat16;
  at::Device device = at::kCPU;
  std::function<void(double)> progress = {};
};

// "default", a folder or a .gguf file.
LoadedModel load_model(const std::string& name, const LoadOptions& options);

Tokenizer load_tokenizer(const std::filesystem::path& model);

}  // namespace faultline
