// How strong the faults were in each layer while a step sampled and learnt: what the ledger gained since its start. It
// is what the report's map of layers and steps is drawn from. Sums are kept as the ledger's own digits, so that a
// step's share is exact, whatever was counted before it and in whichever order sites were met: a resumed run has the
// same numbers.
#pragma once

#include <map>

#include "record/json_text.h"
#include "tap/plan.h"

namespace faultline {

inline constexpr const char* kLayerErrors = "faultline/layer_error";

class LayerErrors {
 public:
  void begin_step(Plan& plan);
  // {"7": 0.0498, …}: the relative error (root mean square over the ledger's sample) of the layers whose faults acted
  // since then; "-1" is what belongs to no layer.
  Json end_step(Plan& plan) const;

 private:
  std::map<int64_t, at::Tensor> before_;  // by layer: (kLedgerWords) int64
};

}  // namespace faultline
