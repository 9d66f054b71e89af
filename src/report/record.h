// A record as a page needs it: read piece by piece, so that a damaged or missing piece costs that piece and a sentence,
// never the page. What is wrong is kept in `missing`, which the page shows before any number.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "record/run_directory.h"

namespace faultline::report {

struct LoadedRecord {
  std::filesystem::path path;
  std::string name;  // the folder's, or the file's
  std::string kind;  // "eval", "train", "experiment", "triage", "race", "campaign", …; "" where nothing says
  std::optional<record::Manifest> manifest;
  std::optional<record::Summary> summary;
  Json ledger;                       // null where there is none
  Json document;                     // of a record that is one file: analysis.json, matrix.json, the result of a race
  std::vector<Json> events;          // of a run; of a campaign its trials: cell, index, seed, status, outcome
  std::vector<std::string> missing;  // sentences

  const Json& results() const;  // of the summary; null where there is none
};

// A run directory, the folder of an experiment or a triage, or a result as one JSON file. UsageError where the path
// holds no record at all.
LoadedRecord load_record(const std::filesystem::path& path);

// One self-contained HTML page from records: no script, no network, no file beside it. A content security policy in its
// head forbids all of them, so that even a mistake in escaping could not run anything.

std::string page(const std::vector<LoadedRecord>& records);

// A line for each record, for a terminal.
struct Outline {
  std::string name, kind, headline;
  std::vector<std::string> missing;
};
std::vector<Outline> outline(const std::vector<LoadedRecord>& records);

extern const char* const kStyleSheet;

}  // namespace faultline::report
