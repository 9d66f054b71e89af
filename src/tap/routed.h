// Routed calls: how often each expert of a mixture was chosen, as the model's own choice says (site/boundary.h). The
// number of an expert's operator calls is then calls for each routed call x routed calls, in a census and in a run
// alike.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "site/forward.h"

namespace faultline::tap {

class RoutedCalls {
 public:
  using Key = std::tuple<site::PlaceId, site::Phase, site::ForwardKind>;  // the list of experts, and in which forward

  // The experts among `chosen` ran once each, now. Going forward with gradients, their backward is due as well.
  void add(site::PlaceId experts, const std::vector<int64_t>& distinct);
  void clear();
  // Times each expert was chosen; empty: none was. Backward of a checkpoint that re-enters autograd belongs to its
  // recomputation.
  std::vector<int64_t> of(site::PlaceId experts, site::Phase phase, site::ForwardKind kind) const;
  std::vector<site::PlaceId> places() const;

 private:
  mutable std::mutex mutex_;
  std::map<Key, std::vector<int64_t>> times_;
};

// Where in a mixture a place lies: the list of experts, the expert's number (nothing: all of them in one module) and
// what follows ("down_proj").
struct ExpertPlace {
  std::string experts;
  std::optional<int64_t> number;
  std::string inside;
};
std::optional<ExpertPlace> expert_place(const std::string& path);  // nothing: not in a list of experts

// Whether a census is being taken or the active plan's counts depend on routing; for clients to whom telling costs.
bool routing_is_wanted();

// Routing told while a census is being taken.
RoutedCalls& routed_in_census();
void record_routing(bool on);

}  // namespace faultline::tap
