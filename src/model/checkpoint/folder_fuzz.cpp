// Fuzzes the JSON files of a Hugging Face folder: config.json, a zero byte, generation_config.json, a zero byte,
// model.safetensors.index.json. Beside them lies one sound shard that an index may name. A configuration that is
// accepted must pass its own check and be read the same from what it is written as.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files/safetensors_header.h"
#include "base/fuzz_target.h"
#include "model/checkpoint/safetensors_folder.h"
#include "model/config.h"

namespace faultline::model {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const FuzzFolder& folder() {
  static const FuzzFolder made;
  static const bool once = [] {
    std::vector<SafetensorsEntry> entries(2);
    entries[0].name = "a", entries[1].name = "b";
    for (SafetensorsEntry& entry : entries) entry.dtype = "F32", entry.sizes = {2};
    const std::string header = make_safetensors_header(entries, {8, 8});
    made.write("s.safetensors", header + std::string(16, '\0'));
    return true;
  }();
  (void)once;
  return made;
}

void check_config_files() {
  const ModelConfig config = read_folder_config(folder().path());
  check_config(config, "fuzz");
  for (const int64_t token : config.end_tokens) require(token >= 0);
  const ModelConfig again = read_config(to_config_json(config), "again");
  require(to_config_json(again) == to_config_json(config));
}

void check_index() {
  const SafetensorsFolder files(folder().path());
  for (const auto& [name, tensor] : files.tensors()) {
    require(name == "a" || name == "b");
    require(tensor.bytes.size() == 8);
  }
}

}  // namespace
}  // namespace faultline::model

FAULTLINE_FUZZ_TARGET(folder_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline;
  using namespace faultline::model;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors.index.json"}) {
    const size_t end = rest.find('\0');
    if (rest.empty()) {
      folder().remove(name);
    } else {
      folder().write(name, rest.substr(0, end));
    }
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  for (void (*check)() : {check_config_files, check_index}) {
    try {
      check();
    } catch (const Error&) {
    }
  }
  return 0;
}
