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

namespace faultline::model {

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual const ModelConfig& config() const = 0;
  // Exactly the tensors of this configuration, by Hugging Face's names, sorted: each expert has its own, and a tied
  // lm_head.weight is not among them.
  virtual std::vector<std::string> names() const = 0;
  virtual bool contains(const std::string& name) const = 0;
  virtual std::vector<int64_t> sizes(const std::string& name) const = 0;
  // A new tensor of this type (fp32, bf16, fp16) on the CPU: dequantised in fp32, rounded once, rows reordered. The
  // pages that were read leave memory again. UsageError where there is no such tensor, or where a number is not finite,
  // with its place; RuntimeFailure where the file was cut since it was opened. Several threads may read at once.
  virtual at::Tensor read(const std::string& name, at::ScalarType dtype) const = 0;
  virtual std::filesystem::path path() const = 0;
};

// A folder, or a .gguf file; "default": the model that ./dev setup fetched ($FAULTLINE_MODEL, or
// models/SmolLM2-135M-Instruct.Q4_1.gguf in the cache folder). UsageError names what is not supported, missing, left
// over or of the wrong shape; RuntimeFailure what is damaged.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model);

std::filesystem::path resolve_model(const std::string& model);  // the file or folder that `model` means

}  // namespace faultline::model
