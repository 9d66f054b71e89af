// Which kind of fault a residual looks like. Each kind of the catalogue leaves a picture: zeros where the value was
// small, tops cut off, one bit always the same, a residual that is constant, or in proportion, or of the value's sign.
// A kind is named only where its formula, with what rounding allows, explains nearly every element of the columns it
// touched, the unchanged ones included; else it is noise, where two calls were seen to err differently, or unexplained.
#pragma once

#include <functional>
#include <string>

#include "diagnose/observation.h"
#include "diagnose/picture.h"
#include "diagnose/zone.h"

namespace faultline::diagnose {

struct Kind {
  std::string name = "unexplained";
  std::string detail;
  bool intermittent = false;  // the same call was right another time
  bool fresh = false;         // two calls erred, and differently
  bool repeats = false;       // two calls erred, and equally
  double weight = 0;          // how much this picture tells beside others of the same fault
  Zone zone;                  // of zeros: what was lost and what was kept
};

// first, size: the columns that belong to the place.
Kind classify(const Observation& observation, int64_t first, int64_t size);

// The kinds of fault that are formulas of the right value: gain, systematic bias, offset, saturation. Every element of
// a touched column allows an interval of the formula's parameter, as wide as its rounding; a formula is believed when
// one parameter explains nearly all of them, the changed ones by themselves too.

inline constexpr double kNearlyAll = 0.95;

// Of the touched elements, or of the changed ones: the share that passes the test. 0 of none.
double share(const Picture& picture, bool only_changed, const std::function<bool(const Element&)>& test);

// Fills in name and detail; false: none of them explains the picture.
bool name_formula(const Picture& picture, Kind& kind);

}  // namespace faultline::diagnose
