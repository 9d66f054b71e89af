// Every tensor that a model of a given configuration has: its Hugging Face name and sizes, and where a GGUF file keeps
// it. One table serves the check of a checkpoint, both readers and the converter.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace faultline::model {

struct TensorPlace {
  std::string name;            // Hugging Face
  std::vector<int64_t> sizes;  // Hugging Face
  std::string gguf;            // name in a GGUF file
  int64_t expert = -1;         // its index in a tensor that holds all experts; -1: a tensor of its own
  int64_t permuted_heads = 0;  // GGUF's llama keeps the rows of each head in pairs (2i, 2i + 1), not in halves
};

std::vector<TensorPlace> tensor_table(const ModelConfig& config);

// Tensors that files may hold beside those and that say nothing new: tied heads stored twice, frequencies of rope.
bool is_redundant(const std::string& name, const ModelConfig& config);

}  // namespace faultline::model
