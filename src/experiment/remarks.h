// What the reader of a table must know besides its numbers: whether its trials came before its design, whether pairs
// were trained alike, what was not tested. Nothing of this is refused, because a record that says so is worth more than
// none; everything is a sentence, written once for the terminal, the page and the published tables.
#pragma once

#include "experiment/arm_data.h"
#include "record/json_text.h"

namespace faultline {

// Distinct devices and versions of the program, of all trials with proof.
Json made_with(const std::map<std::string, ArmData>& data);

// Adds "remarks" to an analysis that has contrasts and starts and, where there is one, the design; then also
// "before_design", how many of the table's trials are older than it.
void add_remarks(const ExperimentSpec& spec, const std::map<std::string, ArmData>& data, CampaignStore& store,
                 Json& analysis);

}  // namespace faultline
