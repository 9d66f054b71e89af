// What a plan will do, from a census: matched sites, expected calls, and the share of the arithmetic that it reaches.
#pragma once

#include "tap/census.h"

namespace faultline::tap {

// "12 calls: phase ref is off; 3 calls: …"
std::string reasons_text(const std::map<std::string, int64_t>& calls_by_reason);

// What a plan will do, from a census of one forward (and backward): matched sites and predicted calls.
struct Prediction {
  const PlanRule* rule;
  int64_t sites = 0;
  int64_t calls[site::kPhases] = {};         // per forward
  int64_t routed_calls[site::kPhases] = {};  // per routed call of an expert, beside these
  std::map<std::string, int64_t> unreached;  // why calls are not: how many
};
std::vector<Prediction> predict(const Plan& plan, const Census& census);
// Throws UsageError where a rule matches nothing of any census, with the nearest names, or acts nowhere in it, with the
// reasons: a phase that is off, for one.
void check_reached(const Plan& plan, const Censuses& censuses);

// Operators that computed numbers and are of no family, though of a namespace of their own: calls by phase and name.
std::map<site::Phase, std::map<std::string, int64_t>> unknown_operators(const Census& census);

// Share of operators, FLOPs and bytes that the plan reaches in each phase, and what it does not and why.
Json coverage(const Plan& plan, const Census& census);

}  // namespace faultline::tap
