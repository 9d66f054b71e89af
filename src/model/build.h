// How a model is put together: from a source of weights by Hugging Face names, with linears that read the same input
// fused. What exists follows from the configuration.
#pragma once

#include <string>

#include "model/causal_lm.h"
#include "model/checkpoint/checkpoint.h"

namespace faultline::model {

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
  Mlp mlp(const std::string& path, int64_t inner, bool bias = false) const;
  Moe moe(const std::string& path) const;
  Layer layer(int64_t index) const;
};

// Whether a model fits: its weights in the type asked for, against the memory that this process may still have. Asked
// before the first weight is read, because a system that runs out of memory kills processes without a sentence.

int64_t weight_bytes(const Checkpoint& checkpoint, at::ScalarType dtype);  // norms are kept in fp32

// What the system says is available, swap included, or what the control group leaves, if that is less; the largest
// number there is where neither says anything. `root`: "/", or a folder that looks like it, for tests.
int64_t available_memory(const std::filesystem::path& root = "/");

// UsageError naming the model, what it needs and what there is.
void refuse_what_does_not_fit(const Checkpoint& checkpoint, at::ScalarType dtype, int64_t available);

// One word for all weights of a model: what two machines compare before their results are counted together, because a
// model's name or path says nothing about what lies there.

// XXH64 of all weights in the precision they were loaded in, and of their names.
std::string weights_fingerprint(CausalLm& model);

}  // namespace faultline::model
