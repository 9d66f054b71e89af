// The recipe section `diagnose:`, a campaign.
#pragma once

#include "base/schema.h"
#include "diagnose/campaign.h"

namespace faultline {

void register_diagnose_section();  // of the recipe's schema; once

CampaignSpec read_campaign(const Node& recipe);  // validated, with the section

}  // namespace faultline
