// Rules on a command's metrics: `loss` in metrics.jsonl must be finite and below 10, at any record, at the last one or
// at a step. What breaks a rule makes the trial wrong, and so does a file that cannot be judged: a rule that was not
// applied must not look like one that was kept.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "triage/metrics_file.h"

namespace faultline::triage {

enum class MetricAt { kAny, kLast, kStep };

struct MetricRule {
  std::string file, metric;
  MetricAt at = MetricAt::kAny;
  int64_t step = 0;
  std::string step_key = "step";
  bool not_finite = true, missing = true;  // what makes a trial wrong
  std::optional<double> above = {}, below = {};
};

Schema metric_rules_schema();  // of `metrics:`
std::vector<MetricRule> read_metric_rules(const Node& node);
std::string describe(const MetricRule& rule);  // for the dry run

// For each rule {file, metric, at, values, value, place, wrong, note}: how many values it looked at, which decided (the
// first that broke it, else the last), where that stood, "" or the sentence of what is wrong.
Json judge_metrics(const std::vector<MetricRule>& rules, const std::filesystem::path& folder);

}  // namespace faultline::triage
