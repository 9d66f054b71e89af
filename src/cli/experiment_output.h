// How an experiment looks: what it would do, its design, its table.
#pragma once

#include "cli/command.h"
#include "experiment/campaign.h"

namespace faultline::cli {

ExitCode show_dry_run(const Experiment& experiment, const CampaignPart& part, bool again, LoadedModel loaded,
                      const Globals& globals);
void show_design(const Json& design, const std::string& folder, const Globals& globals);
void show_left(int64_t left, const std::string& folder, const Globals& globals);
void show_analysis(const Json& analysis, const std::string& folder, int64_t left, int64_t merged,
                   const Globals& globals);

}  // namespace faultline::cli
