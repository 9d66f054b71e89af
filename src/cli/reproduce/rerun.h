// A record as a question that can be asked again: the command line that would make it, what that needs to be true (the
// same program, the same model), and what of its answer is compared. Words and recipes come from a file somebody else
// may have written, so a command is built here from known parts and never taken whole.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/command.h"
#include "report/record.h"

namespace faultline::cli {

struct RerunChoice {
  std::string arms, seeds;  // of an experiment's trials, as --arms and --seeds write it; "": all
  std::string model;        // where the record's model is now; "": where it was
};

struct Rerun {
  std::vector<std::string> arguments;  // of the program
  std::filesystem::path result;        // where its record will be; a folder of runs where `below`
  bool below = false;
  std::set<std::string> trials = {};  // of an experiment, as ARM/SEED
  bool whole = false;                 // these are all that its table has
  bool resumed = false;               // a training that was stopped and went on: only sums over its parts are compared
  bool checkpoint = false;            // the record still has one, so the weights are compared
};

// Writes what the command reads (a recipe) into `folder`, which exists. UsageError where the record does not say how it
// was made. `commands`: the names of all commands, none of which may hide among a record's words.
Rerun plan_rerun(const report::LoadedRecord& record, const std::filesystem::path& folder,
                 const std::vector<std::string>& commands, const RerunChoice& choice);

[[noreturn]] void refuse_rerun(const report::LoadedRecord& record, const std::string& why);  // UsageError with its path

// Of the programs that made it; none where it does not say.
std::vector<Json> versions_of(const report::LoadedRecord& record, const RerunChoice& choice);
// Path and fingerprint, the path as chosen; without what neither says.
Json model_of(const report::LoadedRecord& record, const RerunChoice& choice);
Json environment_of(const report::LoadedRecord& record);  // as recorded

// What two runs of one question must agree in, without times and paths.
Json content_of(const report::LoadedRecord& record, const Rerun& rerun);

// `faultline reproduce`; apart from the other commands' list, which everything includes.

void add_reproduce(CLI::App& app, const Globals& globals, Run& run);

// A campaign of diagnoses as a question that can be asked again.

std::filesystem::path store_of(const report::LoadedRecord& campaign);

// how: what lies beside the store; model: the one that is compared with the record's.
Rerun rerun_of_campaign(const report::LoadedRecord& record, const Json& how, const std::string& model,
                        const std::filesystem::path& folder);

Json content_of_campaign(const report::LoadedRecord& record);  // trials by cell and index

// An experiment as a question that can be asked again: its table, or some of its trials.

// model: the one that was compared with the record's; "": whatever its recipe names.
Rerun rerun_of_experiment(const report::LoadedRecord& record, const std::string& model,
                          const std::filesystem::path& folder, const RerunChoice& choice);

// Of the trials that are made again: results, curves, evidence. Where these are all, the table too.
Json content_of_experiment(const report::LoadedRecord& record, const Rerun& rerun);

// Of the programs that ran those trials, each once.
std::vector<Json> versions_of_trials(const report::LoadedRecord& record, const RerunChoice& choice);

}  // namespace faultline::cli
