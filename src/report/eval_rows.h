// The rows of an evaluation's record, read once for the page, and the parts of its story that look beyond one row.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/stats/stats.h"
#include "report/html.h"
#include "report/record.h"

namespace faultline::report {

struct EvalRow {
  std::string label;
  bool clean = false;   // no rules
  bool proven = false;  // clean, or with evidence that does not complain
  std::optional<double> accuracy, correct, questions, only_clean, only_faulty, p, p_holm;
  std::optional<double> perplexity, added_nats;
  std::optional<std::pair<double, double>> accuracy_range, added_range;
  Json rules, evidence;
  std::vector<std::string> complaints;

  std::optional<int64_t>
      needed;  // questions that would show the difference seen; nothing: none was seen, or it is shown
  bool shown() const { return p_holm && *p_holm < kAlpha; }
  double points(const EvalRow& clean) const { return 100 * (accuracy.value_or(0) - clean.accuracy.value_or(0)); }
  bool lost_more() const { return only_clean.value_or(0) > only_faulty.value_or(0); }
};

// The clean row is the first, where there is one. Rows that are not proven have none of the optional numbers.
std::vector<EvalRow> read_eval_rows(const LoadedRecord& record);

Html strength_curves(const std::vector<EvalRow>& rows);                              // accuracy over a fault's strength
Html changed_answers(const LoadedRecord& record, const std::vector<EvalRow>& rows);  // clean beside faulty text

}  // namespace faultline::report
