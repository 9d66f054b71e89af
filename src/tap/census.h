// A census: which operators run, where, in which phase, how often, how much they compute. Taken above autograd by a
// boxed fallback that only the threads of a census see, so that an ordinary run pays nothing. What a plan will reach of
// it: prediction.h.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "tap/plan.h"

namespace faultline::tap {

struct CensusEntry {
  std::string name;  // "aten::mm"
  site::PlaceId place = site::kNowhere;
  site::Phase phase = site::Phase::kRollout;
  int64_t calls = 0;
  double flops = 0;
  double bytes = 0;
  std::string shapes;    // of the first call's tensors
  int64_t writes = 0;    // tensors that a rule would act on: an attention's backward writes three a call
  int64_t forwards = 0;  // of its kind and phase in this census; 0: the census is of one forward
  int64_t routed = 0;    // routed calls that made these; 0: they do not depend on routing
  bool scoring = false;  // of forwards of actor_forward that no backward follows; the others have entries of their own
};
using Census = std::vector<CensusEntry>;
using Censuses = std::map<site::ForwardKind, Census>;  // of one forward of each kind

void begin_census();            // counts what this thread runs from now on, and the backward threads it starts
Census end_census();            // of all that ran, as one forward
Censuses end_census_by_kind();  // of all that ran, told apart by the forwards that began meanwhile
Json to_json(const Census& census);

}  // namespace faultline::tap
