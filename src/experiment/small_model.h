// A random Llama of two layers whose tokens are bytes: what experiments run on at scale tiny, where the machinery is
// tried and not the model. A pure function of nothing: the same files everywhere.
#pragma once

#include <filesystem>

namespace faultline {

// The Hugging Face folder, made if it is not there.
std::filesystem::path make_small_model(const std::filesystem::path& folder);

}  // namespace faultline
