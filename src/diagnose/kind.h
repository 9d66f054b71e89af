// Which kind of fault a residual looks like. Each kind of the catalogue leaves a picture: zeros where the value was
// small, tops cut off, one bit always the same, a residual that is constant, or in proportion, or of the value's sign.
// A kind is named only where its formula, with what rounding allows, explains nearly every element of the columns it
// touched, the unchanged ones included; else it is noise (fresh at every call) or unknown.
#pragma once

#include <string>

#include "diagnose/observation.h"
#include "diagnose/zone.h"

namespace faultline {

struct Kind {
  std::string name = "unknown";
  std::string detail;
  bool intermittent = false;  // the same call was right another time
  bool fresh = false;         // wrong at every call, and differently
  double weight = 0;          // how much this picture tells beside others of the same fault
  Zone zone;                  // of zeros: what was lost and what was kept
};

// first, size: the columns that belong to the place.
Kind classify(const Observation& observation, int64_t first, int64_t size);

}  // namespace faultline
