// Partial reach: a rule that faults some of the sites it names and leaves others clean, or faults a site in some of its
// forwards only. Counts of calls that did happen cannot show it; here they are held against what ran. Two sources say
// what ran: a rehearsal (each site's calls in one forward, Plan::rehearse) times the forwards executed, and the entries
// of modules that multiply by a weight (site/entered.h), compiled and fused ones included.
#pragma once

#include <vector>

#include "base/complaint.h"
#include "tap/plan.h"

namespace faultline::tap {

struct PartialSite {
  const PlanRule* rule;
  site::Phase phase;
  site::PlaceId place;
  int64_t calls;     // counted by the ledger
  int64_t expected;  // at least
};

// Whether a rule leaves out no product at all, so that each kernel of one is followed by a fault.
bool faults_every_product(const PlanRule& rule);

// -> sites that had fewer calls than they must have and that the recipe's allow_partial names; all others become
// complaints, one a rule and phase.
std::vector<PartialSite> judge_partial(const Plan& plan, const std::vector<Plan::Evidence>& evidence,
                                       std::vector<Complaint>& complaints);

}  // namespace faultline::tap
