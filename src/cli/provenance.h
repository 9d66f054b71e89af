// How a record says what made it: versions, machine, command, environment, and the files of the model.
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"
#include "lab/loaded_model.h"
#include "record/manifest.h"

namespace faultline::cli {

// XXH64 over the names and bytes of the files that decide what a model computes: a .gguf, or a folder's config,
// tokenizer and safetensors.
std::string model_files_fingerprint(const std::filesystem::path& model);

std::string dtype_option(at::ScalarType type);  // as --dtype writes it

// Everything but the recipe, its name, the seeds and the plan.
void describe_run(Manifest& manifest, const Globals& globals, const LoadedModel& loaded);
// The same as an object, for records that are one file and have no model.
Json provenance_json(const Globals& globals);

}  // namespace faultline::cli
