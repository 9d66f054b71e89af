// `faultline run` on a recipe with the section experiment: its scale, which of its trials, in how many processes, the
// pilot before it, records from other machines, and the table at the end.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/pace.h"
#include "experiment/campaign.h"

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

// config: what the file holds.
ExitCode run_experiment_command(const ModelOptions& model, const ExperimentOptions& options,
                                const std::filesystem::path& recipe_file, const Node& config,
                                const std::vector<std::string>& overrides, const std::filesystem::path& out,
                                const Globals& globals);

// "0-4,7" as a set. UsageError that names the option.
std::vector<int64_t> parse_indices(const std::string& option, const std::string& text);

// How an experiment looks: what it would do, its design, its table.

ExitCode show_dry_run(const experiment::Experiment& experiment, const experiment::CampaignPart& part, bool again,
                      lab::LoadedModel loaded, const Globals& globals);
void show_design(const Json& design, const std::string& folder, const Globals& globals);
void show_left(int64_t left, const std::string& folder, const Globals& globals);
void show_analysis(const Json& analysis, const std::string& folder, int64_t left, int64_t merged,
                   const Globals& globals);

// `faultline run --merge FOLDER`: what was found out and written down before the other machine's trials is what they
// belong to; a folder that has none of it takes it over with them, and gives it back where the merge is refused.

class Adopted {  // design, calibration and verdict
 public:
  Adopted(const std::filesystem::path& folder, const std::vector<std::string>& others);
  ~Adopted();
  Adopted(const Adopted&) = delete;
  Adopted& operator=(const Adopted&) = delete;
  void keep() { files_.clear(); }

 private:
  std::vector<std::filesystem::path> files_;
};

// Keeps what was adopted as soon as nothing is left to refuse. -> how many trials were new
int64_t merge_folders(experiment::Experiment& experiment, const std::vector<std::string>& others, Adopted& adopted);

}  // namespace faultline::cli
