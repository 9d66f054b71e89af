#include "triage/statistics.h"

#include <fmt/format.h>

#include <algorithm>

#include "triage/repetitions.h"

namespace faultline::triage {
namespace {

constexpr double kAlpha = 0.05;

void add_trial(CellSummary& cell, const RecordedTrial& trial, std::vector<double>& steps) {
  switch (trial.result.verdict) {
    case TrialVerdict::kPass: ++cell.passed; break;
    case TrialVerdict::kFail: ++cell.failed; break;
    default:
      ++cell.errors;
      cell.did_not_run += trial.result.outcome == "did_not_run";
      return;
  }
  const EvidenceSums sums = sums_of(trial.result.result);
  if (sums.step_seconds) steps.push_back(*sums.step_seconds);
  cell.events += sums.events, cell.collectives += sums.collectives, cell.bytes += sums.bytes;
}

// A mitigation whose variables nothing mentions: it may not have been read at all.
void note_unread(const Cell& cell, const std::vector<RecordedTrial>& trials, CellSummary& summary) {
  for (const Bundle& mitigation : cell.mitigations) {
    if (mitigation.require_log.empty()) continue;
    bool logged = false, read = false;
    for (const RecordedTrial& trial : trials) {
      if (trial.cell != cell.name || trial.log.empty()) continue;
      logged = true;
      read |= trial.log.find(mitigation.require_log) != std::string::npos;
    }
    if (logged && !read)
      summary.notes.push_back(fmt::format("no-op: {}: no log holds '{}', so perhaps nothing reads it", mitigation.name,
                                          mitigation.require_log));
  }
}

CellSummary count(const Cell& cell, const std::vector<RecordedTrial>& trials) {
  CellSummary summary;
  summary.name = cell.name;
  for (const Bundle& mitigation : cell.mitigations) summary.mitigations.push_back(mitigation.name);
  summary.notes = cell.notes;
  std::vector<double> steps;
  for (const RecordedTrial& trial : trials)
    if (trial.cell == cell.name) add_trial(summary, trial, steps);
  if (!steps.empty()) summary.step_seconds = upper_median(steps);
  note_unread(cell, trials, summary);
  if (summary.valid() == 0) return summary;
  summary.clopper_pearson = clopper_pearson_interval(summary.failed, summary.valid());
  summary.wilson = wilson_interval(summary.failed, summary.valid());
  summary.upper = clopper_pearson_upper(summary.failed, summary.valid());
  return summary;
}

void compare(Matrix& matrix) {
  const CellSummary baseline = matrix.cells[matrix.baseline];
  std::vector<double> p_values;
  for (size_t i = 0; i < matrix.cells.size(); ++i) {
    CellSummary& cell = matrix.cells[i];
    if (i == matrix.baseline || cell.valid() == 0 || baseline.valid() == 0) continue;
    cell.p_value = fisher_exact_test({cell.failed, cell.passed, baseline.failed, baseline.passed});
    p_values.push_back(*cell.p_value);
    if (cell.step_seconds && baseline.step_seconds && *baseline.step_seconds > 0)
      cell.slowdown = *cell.step_seconds / *baseline.step_seconds;
  }
  const std::vector<double> adjusted = p_values.empty() ? p_values : holm_adjust(p_values);
  auto next = adjusted.begin();
  for (CellSummary& cell : matrix.cells)
    if (cell.p_value) cell.p_adjusted = *next++;
}

std::string finding_of(const CellSummary& cell, const CellSummary& baseline) {
  if (baseline.failed == 0) return "the baseline did not fail: nothing can be shown";
  if (!cell.p_adjusted || *cell.p_adjusted >= kAlpha) return "no difference from the baseline is shown";
  if (cell.rate() > baseline.rate())
    return fmt::format("fails more often than the baseline (p = {:.2g})", *cell.p_adjusted);
  const std::string sure = fmt::format("p = {:.2g}", *cell.p_adjusted);
  if (cell.failed == 0) return fmt::format("removes the failure: at most {:.1f} % remain ({})", 100 * cell.upper, sure);
  return fmt::format("reduces the failure ({})", sure);
}

void label(Matrix& matrix, const Plan& plan) {
  const CellSummary& baseline = matrix.cells[matrix.baseline];
  for (size_t i = 0; i < matrix.cells.size(); ++i) {
    CellSummary& cell = matrix.cells[i];
    if (cell.valid() == 0) {
      const bool never_ran = cell.did_not_run == cell.errors && (cell.errors > 0 || !plan.cells[i].skip.empty());
      cell.confound = never_ran ? "did_not_run" : "error";
      cell.finding = "no valid trial";
    } else if (i == matrix.baseline) {
      cell.confound = "n/a";
      cell.finding = cell.failed > 0 ? "reproduces the failure" : "does not reproduce the failure";
    } else {
      cell.finding = finding_of(cell, baseline);
      const bool slower = cell.slowdown && *cell.slowdown > plan.confound_threshold;
      const bool different = cell.p_adjusted && *cell.p_adjusted < kAlpha && baseline.failed > 0;
      cell.confound = slower      ? fmt::format("speed (+{:.0f}%)", 100 * (*cell.slowdown - 1))
                      : different ? ""
                                  : "no effect";
    }
  }
}

// Of the tap, by code; of a result that another process made.
std::map<std::string, int64_t> complaint_counts(const Json& result) {
  std::map<std::string, int64_t> counts;
  if (!result.is_object() || !result.contains("tap") || !result.at("tap").is_object()) return counts;
  const Json codes = result.at("tap").value("codes", Json());
  if (!codes.is_object()) return counts;
  for (const auto& [code, count] : codes.items())
    if (count.is_number_integer()) counts[code] = count.get<int64_t>();
  return counts;
}

// A clean trial that took longer than the baseline's clean ones by more than the threshold is slow.
void count_outcomes(Matrix& matrix, const Plan& plan, const std::vector<RecordedTrial>& trials) {
  const std::optional<double> usual = matrix.cells[matrix.baseline].step_seconds;
  for (CellSummary& cell : matrix.cells)
    for (const RecordedTrial& trial : trials) {
      if (trial.cell != cell.name) continue;
      const bool clean = trial.result.verdict == TrialVerdict::kPass;
      const std::optional<double> took = clean ? sums_of(trial.result.result).step_seconds : std::nullopt;
      const bool slow = took && usual && *took > *usual * plan.confound_threshold;
      ++cell.outcomes[slow ? "slow" : trial.result.outcome];
      if (trial.result.outcome == "differs") cell.different.push_back({trial.index, trial.result.sentence});
      for (const auto& [code, count] : complaint_counts(trial.result.result)) cell.complaints[code] += count;
    }
}

}  // namespace

Matrix summarise(const Plan& plan, const std::vector<RecordedTrial>& recorded) {
  const bool repeated = plan.repeats();
  const std::vector<RecordedTrial> judged = repeated ? judge_repetitions(recorded) : std::vector<RecordedTrial>();
  const std::vector<RecordedTrial>& trials = repeated ? judged : recorded;
  Matrix matrix;
  matrix.baseline = plan.baseline;
  for (const Cell& cell : plan.cells) matrix.cells.push_back(count(cell, trials));
  compare(matrix);
  label(matrix, plan);
  if (!plan.command.empty()) count_outcomes(matrix, plan, trials);
  const CellSummary& baseline = matrix.cells[matrix.baseline];
  matrix.disqualified = baseline.valid() == 0;
  matrix.sentence =
      matrix.disqualified
          ? fmt::format("the baseline cell '{}' has no valid trial: the matrix shows nothing", baseline.name)
          : fmt::format("baseline '{}': {}", baseline.name, rate_text(baseline));
  return matrix;
}

std::string rate_text(const CellSummary& cell) {
  if (cell.valid() == 0) return "0/0";
  if (cell.failed == 0) return fmt::format("0/{}: <={:.1f} % at 95 %", cell.valid(), 100 * cell.upper);
  return fmt::format("{}/{} = {:.1f} % [{:.1f}, {:.1f}]", cell.failed, cell.valid(), 100 * cell.rate(),
                     100 * cell.clopper_pearson.low, 100 * cell.clopper_pearson.high);
}

Json to_json(const Matrix& matrix) {
  Json cells = Json::array();
  const auto optional = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  for (const CellSummary& cell : matrix.cells) {
    const double gib = static_cast<double>(cell.bytes) / (1 << 30);
    cells.push_back({{"name", cell.name},
                     {"mitigations", cell.mitigations},
                     {"valid", cell.valid()},
                     {"passed", cell.passed},
                     {"failed", cell.failed},
                     {"errors", cell.errors},
                     {"did_not_run", cell.did_not_run},
                     {"rate", cell.rate()},
                     {"text", rate_text(cell)},
                     {"clopper_pearson_95", {cell.clopper_pearson.low, cell.clopper_pearson.high}},
                     {"wilson_95", {cell.wilson.low, cell.wilson.high}},
                     {"upper_95", cell.upper},
                     {"p_fisher", optional(cell.p_value)},
                     {"p_holm", optional(cell.p_adjusted)},
                     {"step_seconds", optional(cell.step_seconds)},
                     {"slowdown", optional(cell.slowdown)},
                     {"confound", cell.confound},
                     {"finding", cell.finding},
                     {"events", cell.events},
                     {"collectives", cell.collectives},
                     {"gib", gib},
                     {"events_per_collective", cell.collectives > 0 ? Json(static_cast<double>(cell.events) /
                                                                           static_cast<double>(cell.collectives))
                                                                    : Json(nullptr)},
                     {"events_per_gib", gib > 0 ? Json(static_cast<double>(cell.events) / gib) : Json(nullptr)},
                     {"notes", cell.notes}});
    if (!cell.outcomes.empty()) cells.back()["outcomes"] = cell.outcomes;
    if (!cell.complaints.empty()) cells.back()["complaints"] = cell.complaints;
    for (const CellSummary::Different& trial : cell.different)
      cells.back()["different"].push_back({{"index", trial.index}, {"sentence", trial.sentence}});
  }
  return {{"cells", cells},
          {"baseline", matrix.cells[matrix.baseline].name},
          {"disqualified", matrix.disqualified},
          {"sentence", matrix.sentence}};
}

}  // namespace faultline::triage
