// A rank's evidence as a file: what a process leaves for whoever merges all ranks'.
#pragma once

#include "race/run.h"

namespace faultline::race {

Json evidence_to_json(const RankEvidence& evidence);
RankEvidence evidence_from_json(const Json& json, const std::string& origin);  // RuntimeFailure where it is damaged

}  // namespace faultline::race
