// Options of the commands that run a model: which model, how it computes, which faults.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "cli/command.h"
#include "lab/loaded_model.h"
#include "numeric/rule.h"
#include "record/run_record.h"

namespace faultline::cli {

struct ModelOptions {
  std::string model = "default", dtype = "bf16";
  std::vector<std::string> faults;
};

void add_model_options(CLI::App& command, ModelOptions& options);
void add_fault_option(CLI::App& command, ModelOptions& options, const char* text);
std::string where_help();  // the grammar of --fault, for the footer of commands that have it

// The default model where it is missing and the wheel's launcher named a Python that can fetch it
// (FAULTLINE_FETCH_WITH). RuntimeFailure where that fails.
void fetch_default_model(const std::string& model);

// With a progress line unless quiet.
lab::LoadedModel open_model(const ModelOptions& options, const Globals& globals);
at::ScalarType model_dtype(const std::string& name);
std::string dtype_option(at::ScalarType type);  // as --dtype writes it

// This command, as records name their maker.
record::Maker maker_of(const Globals& globals, const lab::LoadedModel* loaded = nullptr);

// Faults as they were typed -> rules with names that differ.
std::vector<numeric::Rule> read_faults(const std::vector<std::string>& texts);

// Throws UsageError where a rule cannot change one bit in the type that the model computes in: before it is loaded.
void refuse_invisible(const std::vector<numeric::Rule>& rules, const ModelOptions& options);

// The device a command works on. The program is linked without torch_cuda, so that it starts at once and runs where
// there is none; asking for a GPU loads it.

// "cpu", "cuda", "cuda:1". UsageError for another name; RuntimeFailure where CUDA was asked for and is not there.
c10::Device open_device(const std::string& name);

}  // namespace faultline::cli
