#include "cli/provenance.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"
#include "record/document.h"
#include "record/environment.h"
#include "record/manifest.h"
#include "record/mapped_file.h"

namespace faultline::cli {
namespace {

namespace fs = std::filesystem;

bool decides(const fs::path& file) {
  const std::string name = file.filename().string();
  return file.extension() == ".safetensors" || file.extension() == ".gguf" || name == "config.json" ||
         name == "tokenizer.json" || name == "tokenizer_config.json" || name == "generation_config.json";
}

uint64_t hash_of(const fs::path& file, uint64_t seed) {
  if (fs::file_size(file) == 0) return hash64("", seed);
  const MappedFile mapped(file);
  const auto bytes = mapped.bytes();
  return hash64({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, seed);
}

}  // namespace

std::string model_files_fingerprint(const fs::path& model) {
  std::vector<fs::path> files;
  if (fs::is_directory(model)) {
    for (const auto& entry : fs::directory_iterator(model))
      if (entry.is_regular_file() && decides(entry.path())) files.push_back(entry.path());
  } else {
    files.push_back(model);
  }
  std::sort(files.begin(), files.end());
  uint64_t hash = 0;
  for (const fs::path& file : files) {
    // A single file may be renamed; within a folder the names belong to the model.
    hash = hash64(files.size() > 1 ? file.filename().string() : "", hash);
    hash = hash_of(file, hash);
  }
  return fmt::format("{:016x}", hash);
}

std::string dtype_option(at::ScalarType type) {
  return type == at::kBFloat16 ? "bf16" : type == at::kHalf ? "fp16" : "fp32";
}

Json provenance_json(const Globals& globals, const LoadedModel* loaded) {
  Json json = {{"versions", as_record(versions_json())},
               {"host", host_description()},
               {"command", recorded_words(globals.arguments)},
               {"environment", recorded_environment()}};
  if (loaded != nullptr)
    json["model"] = {{"path", fs::absolute(loaded->path).string()},
                     {"dtype", dtype_option(loaded->model->options().dtype().toScalarType())},
                     {"fingerprint", model_files_fingerprint(loaded->path)}};
  return json;
}

fs::path provenance_of_store(const fs::path& store) { return store.string() + ".provenance.json"; }

void write_provenance(const fs::path& folder, const Globals& globals, const LoadedModel* loaded) {
  const fs::path file = folder / "provenance.json";
  if (!fs::exists(file)) write_document(file, "provenance", provenance_json(globals, loaded));
}

}  // namespace faultline::cli
