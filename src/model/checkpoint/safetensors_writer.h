// Writes .safetensors files that appear whole or not at all (record/file.h). Tensors may be handed over or made
// one at a time, so that a file may be larger than memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace faultline::model {

using Metadata = std::map<std::string, std::string>;

// CPU or CUDA, any strides; fp32, bf16, fp16, fp64 or int64, UsageError otherwise, or where a name occurs twice.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors, const Metadata& metadata = {});

struct TensorToCome {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
};
// make(i) gives tensor i, of the type and sizes announced; called once for each, in order.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToCome>& tensors,
                       const std::function<at::Tensor(std::size_t)>& make, const Metadata& metadata = {});

}  // namespace faultline::model
