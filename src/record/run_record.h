// What every record says besides its numbers, in one shape: what was asked (the manifest) and who made it (versions,
// machine, command, environment, the model's files). A run is a folder of that; a result that is one file holds its
// maker as "made_by". `faultline reproduce` reads both again.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "record/run_directory.h"

namespace faultline::record {

struct Maker {
  Json versions = Json::object();         // of the program
  std::vector<std::string> command = {};  // words as typed; values of what names a secret are left out of records
  Json model = nullptr;                   // describe_model(), where there is one
  std::string device = {};                // "cuda:0"
};

struct Asked {
  std::string name;  // of the recipe, or of the command
  Json recipe = Json::object();
  uint64_t seed = 0;
  Json plan = Json::array();  // its rules
};

// runs/NAME-TIMESTAMP-HASH with its manifest.json and provenance.json.
RunDirectory begin_run(const std::filesystem::path& root, const Asked& asked, const Maker& maker);

// A run of kind "plan", whole: the report of an armed plan as its ledger, and the numbers that were measured under it
// beside the complaints that speak against them. -> its folder
std::filesystem::path write_plan_run(const std::filesystem::path& root, const Asked& asked, const Maker& maker,
                                     const Json& report, const Json& numbers);

Json made_by(const Maker& maker);
// provenance.json in a folder, unless it is there already: a run that goes on keeps its first one.
void write_provenance(const std::filesystem::path& folder, const Maker& maker);
std::filesystem::path provenance_of_store(const std::filesystem::path& store);  // STORE.sqlite.provenance.json

// A record that is one file, with its maker.
void write_result(const std::filesystem::path& file, Json result, const Maker& maker);

// XXH64 over the names and bytes of the files that decide what a model computes: a .gguf, or a folder's config,
// tokenizer and safetensors.
std::string model_files_fingerprint(const std::filesystem::path& model);
Json describe_model(const std::filesystem::path& model, const std::string& dtype);

}  // namespace faultline::record
