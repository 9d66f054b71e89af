// A model's files, read only: a Hugging Face folder (config.json, one or several .safetensors) or a GGUF file. Both are
// memory-mapped; tensors are found by their Hugging Face names and come out in Hugging Face's order of rows, whatever
// the file's own is. Nothing is ever loaded from pickle.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"

namespace faultline {

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual const ModelConfig& config() const = 0;
  virtual std::vector<std::string> names() const = 0;  // Hugging Face names, sorted
  virtual bool contains(const std::string& name) const = 0;
  virtual std::vector<int64_t> sizes(const std::string& name) const = 0;
  // A new tensor of this type on the CPU: dequantised, rows reordered. UsageError where the file has no such tensor or
  // the bytes are not what they should be. Non-finite numbers are refused, with their place.
  virtual at::Tensor read(const std::string& name, at::ScalarType dtype) const = 0;
  virtual std::filesystem::path path() const = 0;
};

// A folder, or a .gguf file; "default": the model that ./dev setup fetched ($FAULTLINE_MODEL, or
// models/SmolLM2-135M-Instruct.Q4_1.gguf in the cache folder). Throws UsageError that names what is wrong and what to
// do.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model);

std::filesystem::path resolve_model(const std::string& model);  // the file or folder that `model` means

}  // namespace faultline
