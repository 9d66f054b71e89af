// What a run's faults did, as its record keeps it: ledger counts by rule and phase, added up over the parts of a run
// that was stopped and resumed. A part ends at a checkpoint, so the sum of the parts of a resumed run is the count of
// an uninterrupted one, to the last call. Whether the evidence is enough is judged on the sum; what was wrong with one
// row of one part stays wrong.
#pragma once

#include <string>
#include <vector>

#include "base/complaint.h"
#include "base/json.h"
#include "tap/census.h"

namespace faultline::lab {

// {"parts": 1, "counts": [{"rule", "phase", "dtype", "sites", "calls", "changed", …}], "forwards", "complaints"}.
// Complaints about single rows only: a rule that has not fired yet may fire in the next part.
Json part_evidence(tap::Plan& plan, const tap::Censuses& censuses);

Json join_evidence(const Json& before, const Json& now);  // either may be null
void leave_out_phase(Json& evidence, site::Phase phase);  // its counts and forwards

// Empty where every rule of the plan did what it promised in every phase it was to act in.
std::vector<Complaint> missing_evidence(const Json& evidence, const tap::Plan& plan);

}  // namespace faultline::lab
