// Options of the commands that run a model: which model, how it computes, which faults.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "lab/loaded_model.h"
#include "numeric/rule.h"

namespace faultline::cli {

struct ModelOptions {
  std::string model = "default", dtype = "bf16";
  std::vector<std::string> faults;
};

void add_model_options(CLI::App& command, ModelOptions& options);
void add_fault_option(CLI::App& command, ModelOptions& options, const char* text);

// With a progress line unless quiet.
LoadedModel open_model(const ModelOptions& options, const Globals& globals);
at::ScalarType model_dtype(const std::string& name);

// Faults as they were typed -> rules with names that differ.
std::vector<Rule> read_faults(const std::vector<std::string>& texts);

}  // namespace faultline::cli
