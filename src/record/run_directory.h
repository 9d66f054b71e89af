// The folder of one run, `runs/<recipe>-<timestamp>-<hash>/`: manifest.json, events.jsonl, ledger.json, summary.json,
// checkpoints/, lock. It is prepared under a hidden name and renamed into place with its manifest inside, so a folder
// that can be seen can be resumed, and an existing one is never touched: a name that is taken gets "-2", "-3", …. The
// object holds the folder's lock for its lifetime.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/machine.h"
#include "record/directory_lock.h"
#include "record/jsonl.h"
#include "record/manifest.h"

namespace faultline::record {

// How far a run came. `step_evaluated` is the step that the reported numbers belong to: a table must not show an
// earlier evaluation as the final one.
struct Summary {
  int64_t step_reached = 0;
  int64_t steps_planned = 0;
  std::optional<int64_t> step_evaluated = std::nullopt;
  Json results = Json::object();

  bool complete() const;  // all steps done, and the last one evaluated if any was
};

class RunDirectory {
 public:
  static RunDirectory create(const std::filesystem::path& root, Manifest manifest, const Clock& clock = system_seconds);

  // Continues a run; refused when the resolved recipe differs from the manifest's.
  static RunDirectory open(const std::filesystem::path& directory, const Json& resolved_recipe);

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  EventWriter& events() { return events_; }
  std::filesystem::path checkpoint_path(int64_t step) const;  // checkpoints/step-000040

  void write_ledger(const Json& ledger) const;
  void write_summary(const Summary& summary) const;

 private:
  RunDirectory(std::filesystem::path path, DirectoryLock lock, Manifest manifest);

  std::filesystem::path path_;
  DirectoryLock lock_;  // before events_: released after the last event is written
  Manifest manifest_;
  EventWriter events_;
};

// Everything in a run directory, for reports. Needs no lock: a run in progress may be read.
struct RunRecord {
  Manifest manifest;
  std::optional<Json> ledger;
  std::optional<Summary> summary;
  std::vector<Json> events;
};

RunRecord read_run(const std::filesystem::path& directory);

// Letters, digits, '_', '-' and inner dots; never empty, hidden, a path, or longer than 80 bytes.
std::string sanitized_run_name(const std::string& name);

}  // namespace faultline::record
