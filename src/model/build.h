// How a model is put together: from a source of weights by Hugging Face names, with linears that read the same input
// fused. What exists follows from the configuration.
#pragma once

#include "model/causal_lm.h"

namespace faultline {

WeightSource stored_weights(const Checkpoint& checkpoint, const std::function<void(double)>& progress);
WeightSource random_weights(uint64_t seed, const at::Device& device);

struct Builder {
  const ModelConfig& config;
  const WeightSource& source;
  at::ScalarType dtype;
  at::Device device;

  at::Tensor weight(const std::string& name, const std::vector<int64_t>& sizes) const;
  Norm norm(const std::string& path, int64_t size) const;
  // names: of the fused linears below the parent of path; empty: path itself is one linear. sizes: output features.
  Linear linear(const std::string& path, const std::vector<std::string>& names, const std::vector<int64_t>& sizes,
                int64_t input, bool bias) const;
  Mlp mlp(const std::string& path, int64_t inner) const;
  Moe moe(const std::string& path) const;
  Layer layer(int64_t index) const;
};

}  // namespace faultline
