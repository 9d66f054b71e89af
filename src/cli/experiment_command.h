// `faultline run` on a recipe with the section experiment: its scale, which of its trials, in how many processes, the
// pilot before it, records from other machines, and the table at the end.
#pragma once

#include <filesystem>

#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/pace.h"

namespace faultline::cli {

struct ExperimentOptions {
  std::string scale = "default", arms, seeds;
  std::string folder;  // of the experiment itself, for workers elsewhere; "": below --out
  Pace pace;
  std::vector<std::string> merge;
  bool pilot = false, again = false, worker = false, dry_run = false;

  bool changed() const {
    return scale != "default" || !arms.empty() || !seeds.empty() || !merge.empty() || pilot || again;
  }
};

void add_experiment_options(CLI::App& command, ExperimentOptions& options);

ExitCode run_experiment_command(const ModelOptions& model, const ExperimentOptions& options,
                                const std::filesystem::path& recipe_file, const std::vector<std::string>& overrides,
                                const std::filesystem::path& out, const Globals& globals);

// "0-4,7" as a set. UsageError that names the option.
std::vector<int64_t> parse_indices(const std::string& option, const std::string& text);

}  // namespace faultline::cli
