// Runs an experiment's missing trials and prints its table: `faultline run` on a recipe with the section experiment.
#pragma once

#include <filesystem>

#include "base/config.h"
#include "cli/command.h"
#include "cli/model_options.h"

namespace faultline::cli {

ExitCode run_and_show_experiment(const ModelOptions& model, const Node& recipe,
                                 const std::filesystem::path& recipe_file, const std::filesystem::path& out,
                                 bool dry_run, const Globals& globals);

}  // namespace faultline::cli
