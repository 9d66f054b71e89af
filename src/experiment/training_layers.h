// How strong the faults were in each layer at each step: what the ledger gained since the last look. It is what the
// report's map of layers and steps is drawn from.
#pragma once

#include <map>

#include "record/json_text.h"
#include "tap/plan.h"

namespace faultline {

inline constexpr const char* kLayerErrors = "faultline/layer_error";

class LayerErrors {
 public:
  // {"7": 0.0498, …}: the relative error (root mean square over the ledger's sample) of the layers whose faults acted
  // since the last call; "-1" is what belongs to no layer.
  Json since_last(Plan& plan);

 private:
  struct Sums {
    double squares = 0, sampled = 0;
  };
  std::map<int64_t, Sums> before_;
};

}  // namespace faultline
