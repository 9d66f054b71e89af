// A census: which operators run, where, in which phase, how often, how much they compute. Taken above autograd by a
// boxed fallback that only the threads of a census see, so that an ordinary run pays nothing. It says what a plan could
// reach, and it is what expected call counts are derived from.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tap/plan.h"

namespace faultline {

struct CensusEntry {
  std::string name;  // "aten::mm"
  PlaceId place = kNowhere;
  Phase phase = Phase::kRollout;
  int64_t calls = 0;
  double flops = 0;
  double bytes = 0;
  std::string shapes;    // of the first call's tensors
  int64_t writes = 0;    // tensors that a rule would act on: an attention's backward writes three a call
  int64_t forwards = 0;  // of its kind and phase in this census; 0: the census is of one forward
  int64_t routed = 0;    // routed calls that made these; 0: they do not depend on routing
};
using Census = std::vector<CensusEntry>;
using Censuses = std::map<ForwardKind, Census>;  // of one forward of each kind

void begin_census();            // counts what this thread runs from now on, and the backward threads it starts
Census end_census();            // of all that ran, as one forward
Censuses end_census_by_kind();  // of all that ran, told apart by the forwards that began meanwhile
nlohmann::ordered_json to_json(const Census& census);

// "12 calls: phase ref is off; 3 calls: …"
std::string reasons_text(const std::map<std::string, int64_t>& calls_by_reason);

// What a plan will do, from a census of one forward (and backward): matched sites and predicted calls.
struct Prediction {
  const PlanRule* rule;
  int64_t sites = 0;
  int64_t calls[kPhases] = {};               // per forward
  int64_t routed_calls[kPhases] = {};        // per routed call of an expert, beside these
  std::map<std::string, int64_t> unreached;  // why calls are not: how many
};
std::vector<Prediction> predict(const Plan& plan, const Census& census);
// Throws UsageError where a rule matches nothing of any census, with the nearest names.
void check_reached(const Plan& plan, const Censuses& censuses);

// Share of operators, FLOPs and bytes that the plan reaches in each phase, and what it does not and why.
nlohmann::ordered_json coverage(const Plan& plan, const Census& census);

}  // namespace faultline
