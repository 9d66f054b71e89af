// Trials as lines of JSON: what workers send, what is published beside a table, what a summary is made from again.
#pragma once

#include <filesystem>
#include <functional>

#include "diagnose/campaign.h"

namespace faultline {

Json to_record(const Trial& trial);
Trial trial_from_record(const Json& record, const std::string& origin);  // RuntimeFailure where a field is missing

// What a worker is told, and back.
Json campaign_request(const CampaignMachine& machine, const CampaignSpec& spec);
std::pair<CampaignMachine, CampaignSpec> campaign_from_request(const Json& request);

void write_records(CampaignStore& store, const std::filesystem::path& path);  // whole or not at all
// A store (.sqlite) or records (.jsonl).
void for_each_trial(const std::filesystem::path& path, const std::function<void(const Trial&)>& visit);

}  // namespace faultline
