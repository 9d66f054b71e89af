// Runs an evaluation and shows it: progress, the table or JSON, the run directory. For `eval` and `run`.
#pragma once

#include <filesystem>

#include "base/json.h"
#include "cli/command.h"
#include "lab/evaluation.h"

namespace faultline::cli {

struct EvaluationRecord {
  uint64_t seed = 0;
  std::filesystem::path out;  // run directories go below it; "": none is written
  std::string name;           // of the recipe, or the command
  Json recipe = Json::object();
};

ExitCode run_and_show(lab::Evaluation& evaluation, const EvaluationRecord& record, const Globals& globals);

// What --dry-run shows: the sites that each faulty row meets and its calls in a forward of each kind.
ExitCode show_predictions(const lab::Evaluation& evaluation, const std::string& command, const Json& recipe,
                          const Globals& globals);

// Each answer of each row as it is kept in a record: an array of events.
faultline::Json answer_events(const std::vector<lab::EvaluationRow>& rows);

}  // namespace faultline::cli
