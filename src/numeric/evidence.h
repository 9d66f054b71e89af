// What a ledger row says: the numbers people read (share changed, realised strength, SQNR, survival) and the verdict
// whether the fault that a rule promised really happened. Complaints make a run fail closed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/complaint.h"
#include "base/json.h"
#include "numeric/ledger.h"
#include "numeric/rule.h"

namespace faultline::numeric {

struct LedgerNumbers {
  double calls = 0, active_calls = 0, elements = 0, selected = 0, changed = 0, nonzero = 0, zeroed = 0, nonfinite = 0,
         saturated = 0, sampled = 0, struck = 0;
  double mean_abs_error = 0;
  double rms_error = 0;
  double max_abs_error = 0;
  std::optional<double> relative_rms;  // rms of (y - x) / x over the sample: the realised strength
  std::optional<double> sqnr_db;       // 10 log10 (sum x^2 / sum e^2); absent where nothing changed
  double survival = 1;                 // share of nonzero elements that stay nonzero
};

LedgerNumbers read_ledger(const double* columns);  // of ledger_columns()
Json to_json(const LedgerNumbers& numbers);

// How strictly evidence is judged. `strengths`: those in force while the ledger was filled, where a schedule moved
// them; empty: the rule's own. The band then spans them all.
struct Judgement {
  double false_alarm = 1e-9;  // probability that a faultless run is refused; divide by the number of rows of a run
  std::vector<double> strengths;
};

// Where the realised strength must lie: exact under the dtype's rounding of normal numbers (the sample holds no
// others), widened by the sample's standard errors.
struct StrengthBand {
  double expected = 0;
  double low = 0;
  double high = 0;
};
std::optional<StrengthBand> expected_strength(const Rule& rule, Dtype dtype, double sampled,
                                              const Judgement& judgement = {});

// Where the realised strength lies outside its band. `where` stands in the sentence after the rule's name: " at
// lm_head aten::mm in eval".
std::optional<Complaint> strength_complaint(const Rule& rule, Dtype dtype, const LedgerNumbers& numbers,
                                            const Judgement& judgement, const std::string& where = "");

// Empty: the evidence is there. Otherwise reasons to fail (exit 3).
std::vector<Complaint> missing_evidence(const Rule& rule, Dtype dtype, const LedgerNumbers& numbers,
                                        const Judgement& judgement = {});

}  // namespace faultline::numeric
