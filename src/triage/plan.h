// A triage recipe, read and checked to the end: every cell with its effective workload configuration and environment,
// so that what a dry run accepts is what a run does.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "race/config.h"
#include "record/json_text.h"
#include "triage/bundles.h"

namespace faultline::triage {

inline constexpr int kSchemaVersion = 1;

struct Cell {
  std::string name;
  std::vector<Bundle> mitigations;
  Bundle environment;
  Environment variables;  // merged: environment, mitigations, extra_env
  Node config;            // of the workload, validated, defaults written out
  race::Config race;
  int64_t trials = 0;
  std::vector<std::string> notes;  // why a mitigation cannot change anything
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
  uint64_t seed = 0;
  Node resolved;  // the recipe with every default written out

  const Cell& baseline_cell() const { return cells[baseline]; }
  int64_t total_trials() const;
};

Schema recipe_schema();
// Throws UsageError with the file, the line and the path of the key.
Plan load_plan(const std::filesystem::path& path, std::span<const std::string> overrides);
Plan read_plan(const Node& given, const std::string& name, const std::filesystem::path& folder);

// The rate that n clean trials exclude with 95 % confidence: 1 - 0.05^(1/n).
double excluded_rate(int64_t trials);
Json to_json(const Plan& plan);
std::vector<std::string> dry_run_lines(const Plan& plan);

}  // namespace faultline::triage
