// From trials to statements: how often a cell failed, within which bounds, whether it differs from the baseline, and
// whether speed alone could explain it. Trials that ended in an error count for nothing but themselves.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/stats/stats.h"
#include "triage/trial.h"

namespace faultline::triage {

struct RecordedTrial {
  std::string cell;
  int64_t index = 0;
  uint64_t seed = 0;
  TrialResult result;
  std::string log;  // of the trial; "" where it was not kept
};

struct CellSummary {
  std::string name;
  std::vector<std::string> mitigations;
  int64_t passed = 0, failed = 0, errors = 0, did_not_run = 0;
  Interval clopper_pearson = {0, 1}, wilson = {0, 1};  // 95 %, two-sided
  double upper = 1;                                    // 95 %, one-sided: "the rate is at most"
  std::optional<double> p_value, p_adjusted;           // Fisher's exact test against the baseline, Holm
  std::optional<double> step_seconds;                  // median over trials of the median step
  std::optional<double> slowdown;                      // against the baseline's
  std::string confound;                                // "speed (+18%)", "no effect", "n/a", "did_not_run", "error", ""
  std::string finding;                                 // a sentence
  int64_t events = 0, collectives = 0, bytes = 0;      // of valid trials
  std::vector<std::string> notes;
  // Of a command: did_not_run, crashed, hung, unproven, wrong, differs, slow, clean.
  std::map<std::string, int64_t> outcomes;
  std::map<std::string, int64_t> complaints;  // of our tap, by code
  struct Different {
    int64_t index;
    std::string sentence;
  };
  std::vector<Different> different;  // trials that did not repeat the others: repetitions.h

  int64_t valid() const { return passed + failed; }
  double rate() const { return valid() == 0 ? 0 : static_cast<double>(failed) / static_cast<double>(valid()); }
};

struct Matrix {
  std::vector<CellSummary> cells;
  size_t baseline = 0;
  bool disqualified = false;  // the baseline has no valid trial: nothing can be compared
  std::string sentence;
};

Matrix summarise(const Plan& plan, const std::vector<RecordedTrial>& trials);
Json to_json(const Matrix& matrix);
std::string markdown(const Plan& plan, const Matrix& matrix);
// matrix.md, matrix.json and matrix.html in the folder of the trials.
void write_matrix(const std::filesystem::path& folder, const Plan& plan, const Matrix& matrix);
std::string rate_text(const CellSummary& cell);  // "0/16: <=17.1 % at 95 %", "9/16 = 56.2 % [29.9, 80.2]"

}  // namespace faultline::triage
