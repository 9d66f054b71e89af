// Campaigns of diagnoses from the command line: `faultline diagnose --campaign PRESET`, `faultline run RECIPE` with a
// section `diagnose:`, and `--summarise` of what was stored.
#pragma once

#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/pace.h"
#include "diagnose/campaign/campaign.h"

namespace faultline::cli {

struct CampaignOptions {
  std::string preset, store = "diagnosis.sqlite", summarise;
  // How it is run; shared with `faultline run`.
  Pace pace;
  std::string records;
  bool markdown = false, worker = false;
};

void add_campaign_options(CLI::App& command, CampaignOptions& options);
void add_campaign_run_options(CLI::App& command, CampaignOptions& options);  // --records, --markdown

ExitCode run_diagnosis_campaign(const ModelOptions& model, const CampaignOptions& options,
                                const std::vector<std::string>& methods, const Globals& globals);
ExitCode run_and_show_campaign(const ModelOptions& model, const diagnose::CampaignSpec& spec,
                               const CampaignOptions& options, const Globals& globals);
// Refuses what a run would be refused for, and writes nothing. -> trials that are not in the store
int64_t trials_left(const ModelOptions& model, const diagnose::CampaignSpec& spec, const CampaignOptions& options,
                    const Globals& globals);
ExitCode summarise_campaign(const std::string& path, const CampaignOptions& options, const Globals& globals);
ExitCode work_for_campaign();  // --worker

// diagnose_summary.cpp
std::string summary_text(const Json& summary);
std::string summary_markdown(const Json& summary);

}  // namespace faultline::cli
