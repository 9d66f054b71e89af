// A triage recipe, read and checked to the end: every cell with its effective workload configuration and environment,
// so that what a dry run accepts is what a run does. A trial is a race, or a command that the command line gives: a
// recipe is data and chooses none.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "race/config.h"
#include "race/launch.h"
#include "triage/bundles.h"
#include "triage/output_patterns.h"

namespace faultline::triage {

inline constexpr int kSchemaVersion = 1;

struct Cell {
  std::string name;
  std::vector<Bundle> mitigations;
  Bundle environment;
  Environment variables;  // merged: environment, mitigations, extra_env
  Node config;            // of the race, validated, defaults written out; of a command: empty
  race::Config race;
  int64_t trials = 0;
  std::vector<std::string> notes;  // why a mitigation cannot change anything
  std::string skip;                // why it is not run; "": it is
};

struct StopAfter {
  int64_t events = 0;  // 0: never
  int64_t max_trials = 0;
  std::string event_verdict = "fail";
};

struct Plan {
  std::string name, ticket;
  std::vector<Cell> cells;
  size_t baseline = 0;
  double confound_threshold = 1.15;
  StopAfter stop_after;
  bool save_logs = true, warmup_trial = true;
  double timeout_per_trial = 600;
  int ranks = 2;
  std::string transport = "threads", device = "cpu";
  race::Launch launch;                      // of ranks that are processes
  std::optional<race::PythonRanks> python;  // transport torch
  uint64_t seed = 0;
  std::vector<std::string> command;  // of every trial; empty: a race
  std::vector<OutputPattern> patterns;
  Json patterns_as_given;                // for the trial, which reads them again
  Json rules_as_given = Json::object();  // trial_rules.h
  bool environment_file = false;         // the cell's variables in a file besides
  std::vector<std::string> notes;        // what was translated, and what does nothing here
  Node resolved;                         // the recipe in our words with every default written out

  void set_launch(race::Launch launch);                       // UsageError where it does not fit
  void set_imports(const std::vector<std::string>& modules);  // of Python's ranks; never from a recipe, which is data
  const Cell& baseline_cell() const { return cells[baseline]; }
  int64_t total_trials() const;
  bool repeats() const { return rules_as_given.contains("same_between_trials"); }  // trials are held against each other
};

Schema section_schema();          // of the section `triage:`
void register_triage_sections();  // of the recipe's schema, race's among them; once
// Throws UsageError with the file, the line and the path of the key.
Plan load_plan(const std::filesystem::path& path, std::span<const std::string> overrides,
               std::span<const std::string> command = {});
Plan read_plan(const Node& given, const std::string& name, const std::filesystem::path& folder,
               std::span<const std::string> command = {});

// The rate that n clean trials exclude with 95 % confidence: 1 - 0.05^(1/n).
double excluded_rate(int64_t trials);
Json to_json(const Plan& plan);
std::vector<std::string> dry_run_lines(const Plan& plan);

}  // namespace faultline::triage
