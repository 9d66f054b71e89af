// Expected counts: what a census says of one forward of each kind (and of one routed call of an expert), times the
// forwards and routed calls of a run, must be what the ledger counted, in every phase and at every place.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/complaint.h"
#include "tap/census.h"

namespace faultline::tap {

inline constexpr int64_t kOutsideOfForwards = -1;  // CensusEntry::forwards of what ran before the first of its kind

// Named tensors that pass are entries of a census, too: so are module rules predicted. Python's hooks tell them; our
// own model passes them where somebody wants them: ToldBoundaries.
void count_boundary(site::PlaceId place, site::Surface surface);     // nothing where this thread takes no census
std::optional<site::Surface> boundary_of(const CensusEntry& entry);  // nothing: it is an operator

// For a census of our own model while no plan is armed: it runs as it will under this plan, whose named tensors pass as
// they are and are counted.
class ToldBoundaries {
 public:
  explicit ToldBoundaries(const Plan& plan);
  ~ToldBoundaries();
  ToldBoundaries(const ToldBoundaries&) = delete;
  ToldBoundaries& operator=(const ToldBoundaries&) = delete;
};

// Old log-probabilities are scored in the actor's own phase, but without gradients other operators compute them.
bool tells_scoring(const Census& census);

// Adds a complaint for each rule on operators' results or modules' tensors and phase where the counts differ, or cannot
// be predicted because the census saw no forward of a kind that ran. Nothing without censuses.
void judge_counts(const Plan& plan, const Censuses& censuses, const std::vector<Plan::Evidence>& evidence,
                  std::vector<Complaint>& complaints);

}  // namespace faultline::tap
