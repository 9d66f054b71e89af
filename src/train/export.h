// A trained model as a Hugging Face folder: fused weights in their parts, under the names that transformers knows.
#pragma once

#include <filesystem>
#include <utility>

#include "model/causal_lm.h"

namespace faultline {

// Views, in the model's order.
std::vector<std::pair<std::string, at::Tensor>> hugging_face_weights(CausalLm& model);

// config.json and weights; the tokenizer's files are taken from `origin`, a folder or a .gguf file. The folder must not
// exist; it appears whole.
void write_model_folder(CausalLm& model, const std::filesystem::path& origin, const std::filesystem::path& folder);

}  // namespace faultline
