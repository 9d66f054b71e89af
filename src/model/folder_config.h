// The configuration of a Hugging Face folder, without its weights.
#pragma once

#include <filesystem>

#include "model/config.h"

namespace faultline {

// config.json; where generation ends by generation_config.json, if it is there and says so. UsageError naming the file.
ModelConfig read_folder_config(const std::filesystem::path& folder);

}  // namespace faultline
