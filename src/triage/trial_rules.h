// What decides about a trial of a command beyond its exit status and its output: rules on the metrics that it wrote,
// what must be the same in every trial of a cell, and our own tap's verdict. All of it is read from the trial's folder,
// which the command finds in FAULTLINE_TRIAL_FOLDER or, as {trial_folder}, among its words.
#pragma once

#include "triage/metric_rules.h"
#include "triage/repetitions.h"
#include "triage/tap_verdict.h"

namespace faultline::triage {

inline constexpr const char* kTrialFolderVariable = "FAULTLINE_TRIAL_FOLDER";
inline constexpr const char* kTrialFolderWord = "{trial_folder}";

struct TrialRules {
  std::vector<MetricRule> metrics;
  std::vector<Repeated> repeated;
  EvidenceUse evidence = EvidenceUse::kRead;
};

// The recipe's keys, of a schema's map: metrics, same_between_trials, fault_evidence.
Schema with_rule_keys(const Schema& map);
inline constexpr const char* kRuleKeys[] = {"metrics", "same_between_trials", "fault_evidence"};

Json rules_as_given(const Node& recipe);  // those keys that it has; {} where it has none
TrialRules read_rules(const Json& given);
std::vector<std::string> describe(const TrialRules& rules);  // lines of a dry run; none where nothing was asked for

// What the trial's folder says: {metrics, repeated, tap}, those that there are.
struct RuleFindings {
  Json json = Json::object();
  std::string wrong;  // "" or the sentence of what is wrong
  TapVerdict tap;
};
RuleFindings apply(const TrialRules& rules, const std::filesystem::path& files);

}  // namespace faultline::triage
