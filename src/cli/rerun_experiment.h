// An experiment as a question that can be asked again: its table, or some of its trials.
#pragma once

#include "cli/rerun.h"

namespace faultline::cli {

// model: the one that was compared with the record's; "": whatever its recipe names.
Rerun rerun_of_experiment(const report::LoadedRecord& record, const std::string& model,
                          const std::filesystem::path& folder, const RerunChoice& choice);

// Of the trials that are made again: results, curves, evidence. Where these are all, the table too.
Json content_of_experiment(const report::LoadedRecord& record, const Rerun& rerun);

// Of the programs that ran those trials, each once.
std::vector<Json> versions_of_trials(const report::LoadedRecord& record, const RerunChoice& choice);

}  // namespace faultline::cli
