#include "experiment/trial_shape.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiment/arm_data.h"

namespace faultline {
namespace {

template <class Test>
bool each(const Json& values, const Test& test) {
  return std::all_of(values.begin(), values.end(), test);
}

bool is_number(const Json& value) { return value.is_number(); }
bool is_text(const Json& value) { return value.is_string(); }
bool numbers(const Json& values) { return values.is_array() && each(values, is_number); }
bool numbers_by_name(const Json& values) { return values.is_object() && each(values, is_number); }
bool is_complaint(const Json& value) {  // trials of before complaints had codes hold sentences
  return is_text(value) || (value.is_object() && value.contains("code") && is_text(value["code"]) &&
                            value.contains("sentence") && is_text(value["sentence"]));
}
bool complaints(const Json& values) { return values.is_array() && !values.empty() && each(values, is_complaint); }

bool start(const Json& metrics) {  // of a step, of which its validation is read
  if (!metrics.is_object()) return false;
  for (const auto& [name, value] : metrics.items())
    if (name.starts_with(kCleanMetric) && !value.is_number()) return false;
  return true;
}

bool curves(const Json& all) {
  if (!all.is_object()) return false;
  for (const char* name : {"loss", "reward", "seconds"})
    if (!all.contains(name) || !numbers(all[name])) return false;
  return (!all.contains("start") || start(all["start"])) &&
         (!all.contains("start_weights") || is_text(all["start_weights"]));
}

bool fault_counts(const Json& evidence) {
  if (!evidence.contains("faults") || evidence["faults"].is_null()) return true;
  const Json& faults = evidence["faults"];
  return faults.is_object() && faults.contains("counts") && faults["counts"].is_array() &&
         each(faults["counts"], [](const Json& row) {
           return row.is_object() && row.contains("phase") && is_text(row["phase"]) && row.contains("changed") &&
                  is_number(row["changed"]);
         });
}

std::string wrong_field(const Trial& trial) {
  const Json& outcome = trial.outcome;
  if (!outcome.is_object()) return "outcome";
  const bool results = outcome.contains("results");
  if ((trial.status == TrialStatus::kPass && !results) || (results && !numbers_by_name(outcome["results"])))
    return "outcome.results";
  if (!outcome.contains("curves") || !curves(outcome["curves"])) return "outcome.curves";
  for (const char* name : {"run", "device"})
    if (!outcome.contains(name) || !is_text(outcome[name])) return fmt::format("outcome.{}", name);
  if (outcome.contains("complaints") && !complaints(outcome["complaints"])) return "outcome.complaints";
  if (outcome.contains("noise_seconds") && !is_number(outcome["noise_seconds"])) return "outcome.noise_seconds";
  if (!trial.evidence.is_null() && (!trial.evidence.is_object() || !fault_counts(trial.evidence))) return "evidence";
  return "";
}

}  // namespace

std::string misshapen(const Trial& trial) {
  const std::string field = wrong_field(trial);
  if (field.empty()) return "";
  return fmt::format("trial {} of {} is not as this program writes it: {}", trial.key.index, trial.key.cell, field);
}

}  // namespace faultline
