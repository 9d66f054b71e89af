#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "model/config.h"

namespace faultline::model {
namespace {

constexpr std::size_t kMaxJsonBytes = std::size_t{16} << 20;

Json read_json(const std::filesystem::path& path) {
  return parse_json_text(read_file(path, kMaxJsonBytes), path.string());
}

}  // namespace

ModelConfig read_folder_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json", generation = folder / "generation_config.json";
  if (!std::filesystem::exists(file)) throw UsageError(fmt::format("{}: no config.json in it", folder.string()));
  ModelConfig config = read_config(read_json(file), file.string());
  if (!std::filesystem::exists(generation)) return config;
  const Json json = read_json(generation);  // where it says so, generation stops at these instead
  const Json* end = json.is_object() && json.contains("eos_token_id") ? &json["eos_token_id"] : nullptr;
  if (end == nullptr || end->is_null()) return config;
  const Json list = end->is_array() ? *end : Json::array({*end});
  for (const Json& token : list) {
    if (token.is_number_integer() && token >= 0 && token < (int64_t{1} << 31)) continue;
    throw UsageError(fmt::format("{}: eos_token_id: wanted one or several token ids", generation.string()));
  }
  config.end_tokens = list.get<std::vector<int64_t>>();
  return config;
}

}  // namespace faultline::model
