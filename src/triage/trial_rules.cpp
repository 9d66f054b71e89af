#include "triage/trial_rules.h"

#include <fmt/format.h>

namespace faultline::triage {
namespace {

Schema rules_schema() { return with_rule_keys(Schema::map()); }

void note_wrong(const Json& judged, RuleFindings& findings) {
  for (const Json& one : judged)
    if (const std::string wrong = one.at("wrong").get<std::string>(); findings.wrong.empty()) findings.wrong = wrong;
}

}  // namespace

Schema with_rule_keys(const Schema& map) {
  return map
      .field("metrics", Schema::any_of({Schema::null(), metric_rules_schema()}),
             {.doc = "workload command: rules on the numbers it writes to its trial's folder"})
      .field("same_between_trials", Schema::any_of({Schema::null(), repeated_schema()}),
             {.doc = "workload command: files, or metrics {file, metric}, that every trial of a cell must repeat"})
      .field("fault_evidence", Schema::choice({"read", "required", "ignored"}),
             {.doc = "workload command: what our tap says in it; read unless it says something else; required: a trial "
                     "without evidence is unproven"});
}

Json rules_as_given(const Node& recipe) {
  Json given = Json::object();
  for (const char* key : kRuleKeys)
    if (const Node* value = recipe.find(key); value != nullptr && !value->is_null())
      given[key] = faultline::to_json(*value);
  return given;
}

TrialRules read_rules(const Json& given) {
  const Node node = validate(faultline::from_json(given, "rules"), rules_schema());
  TrialRules rules;
  if (const Node* metrics = node.find("metrics")) rules.metrics = read_metric_rules(*metrics);
  if (const Node* repeated = node.find("same_between_trials")) rules.repeated = read_repeated(*repeated);
  if (const Node* evidence = node.find("fault_evidence"))
    rules.evidence = evidence->as_string() == "required"  ? EvidenceUse::kRequired
                     : evidence->as_string() == "ignored" ? EvidenceUse::kIgnored
                                                          : EvidenceUse::kRead;
  return rules;
}

std::vector<std::string> describe(const TrialRules& rules) {
  std::vector<std::string> lines;
  for (const MetricRule& rule : rules.metrics) lines.push_back("metrics: " + describe(rule));
  for (const Repeated& one : rules.repeated) lines.push_back(fmt::format("same_between_trials: {}", one.name()));
  if (rules.evidence == EvidenceUse::kRequired)
    lines.emplace_back("fault_evidence: a trial without evidence of its fault is unproven");
  if (rules.evidence == EvidenceUse::kIgnored) lines.emplace_back("fault_evidence: not read");
  return lines;
}

RuleFindings apply(const TrialRules& rules, const std::filesystem::path& files) {
  RuleFindings findings;
  if (!rules.metrics.empty()) note_wrong(findings.json["metrics"] = judge_metrics(rules.metrics, files), findings);
  if (!rules.repeated.empty()) note_wrong(findings.json["repeated"] = digest_repeated(rules.repeated, files), findings);
  findings.tap = read_tap_verdict(files / "evidence", rules.evidence);
  if (!findings.tap.left_nothing()) findings.json["tap"] = to_json(findings.tap);
  return findings;
}

}  // namespace faultline::triage
