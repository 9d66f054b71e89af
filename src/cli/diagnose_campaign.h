// `faultline diagnose --campaign PRESET`: how often the methods are right, measured.
#pragma once

#include "cli/command.h"
#include "cli/model_options.h"
#include "diagnose/campaign.h"

namespace faultline::cli {

struct CampaignOptions {
  std::string preset, store = "diagnosis.sqlite", seconds = "0", records;
};

void add_campaign_options(CLI::App& command, CampaignOptions& options);

ExitCode run_diagnosis_campaign(const ModelOptions& model, const CampaignOptions& options,
                                const std::vector<std::string>& methods, const Globals& globals);

ExitCode run_and_show_campaign(const ModelOptions& model, const CampaignSpec& spec, const CampaignOptions& options,
                               const Globals& globals);

}  // namespace faultline::cli
