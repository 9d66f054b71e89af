#include "record/run_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files/file.h"
#include "base/files/mapped_file.h"
#include "base/text.h"
#include "record/document.h"
#include "record/environment.h"

namespace faultline::record {
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

RunDirectory begin_run(const fs::path& root, const Asked& asked, const Maker& maker) {
  Manifest manifest;
  manifest.recipe_name = asked.name;
  manifest.recipe = asked.recipe;
  manifest.seeds = {{"seed", asked.seed}};
  manifest.plan = asked.plan;
  manifest.versions = maker.versions;
  manifest.host = host_description();
  if (!maker.device.empty()) manifest.device = {{"name", maker.device}};
  RunDirectory directory = RunDirectory::create(root, manifest);
  write_provenance(directory.path(), maker);
  return directory;
}

fs::path write_plan_run(const fs::path& root, const Asked& asked, const Maker& maker, const Json& report,
                        const Json& numbers) {
  const RunDirectory directory = begin_run(root, asked, maker);
  directory.write_ledger(report);
  Summary summary;
  summary.results = {{"kind", "plan"}, {"numbers", numbers}, {"complaints", report.at("complaints")}};
  directory.write_summary(summary);
  return directory.path();
}

Json made_by(const Maker& maker) {
  Json json = {{"versions", maker.versions},
               {"host", host_description()},
               {"command", recorded_words(maker.command)},
               {"environment", recorded_environment()}};
  if (!maker.model.is_null()) json["model"] = maker.model;
  return json;
}

void write_provenance(const fs::path& folder, const Maker& maker) {
  const fs::path file = folder / "provenance.json";
  if (!fs::exists(file)) write_document(file, "provenance", made_by(maker));
}

fs::path provenance_of_store(const fs::path& store) { return store.string() + ".provenance.json"; }

void write_result(const fs::path& file, Json result, const Maker& maker) {
  result["made_by"].update(made_by(maker));  // besides what the command knows of its making
  write_file_atomically(file, to_json_text(result, 2) + "\n");
}

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

Json describe_model(const fs::path& model, const std::string& dtype) {
  return {{"path", fs::absolute(model).string()}, {"dtype", dtype}, {"fingerprint", model_files_fingerprint(model)}};
}

}  // namespace faultline::record
