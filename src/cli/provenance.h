// Who made a record, beside what was asked, which is the manifest's: versions, machine, command, environment, and the
// files of the model. `faultline reproduce` reads it again.
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"
#include "lab/loaded_model.h"
#include "record/json_text.h"

namespace faultline::cli {

// XXH64 over the names and bytes of the files that decide what a model computes: a .gguf, or a folder's config,
// tokenizer and safetensors.
std::string model_files_fingerprint(const std::filesystem::path& model);

std::string dtype_option(at::ScalarType type);  // as --dtype writes it

// provenance.json in the folder of a record, unless it is there already: a resumed run keeps its first one.
void write_provenance(const std::filesystem::path& folder, const Globals& globals, const LoadedModel* loaded = nullptr);
std::filesystem::path provenance_of_store(const std::filesystem::path& store);  // STORE.sqlite.provenance.json
// The same as an object, for records that are one file.
Json provenance_json(const Globals& globals, const LoadedModel* loaded = nullptr);

}  // namespace faultline::cli
