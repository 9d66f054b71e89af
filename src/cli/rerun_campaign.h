// A campaign of diagnoses as a question that can be asked again.
#pragma once

#include "cli/rerun.h"

namespace faultline::cli {

std::filesystem::path store_of(const report::LoadedRecord& campaign);

// how: what lies beside the store; model: the one that is compared with the record's.
Rerun rerun_of_campaign(const report::LoadedRecord& record, const Json& how, const std::string& model,
                        const std::filesystem::path& folder);

Json content_of_campaign(const report::LoadedRecord& record);  // trials by cell and index

}  // namespace faultline::cli
