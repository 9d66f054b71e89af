// The kinds of fault that are formulas of the right value: gain, systematic bias, offset, saturation. Every element of
// a touched column allows an interval of the formula's parameter, as wide as its rounding; a formula is believed when
// one parameter explains nearly all of them, the changed ones by themselves too.
#pragma once

#include <functional>

#include "diagnose/kind.h"
#include "diagnose/picture.h"

namespace faultline {

inline constexpr double kNearlyAll = 0.95;

// Of the touched elements, or of the changed ones: the share that passes the test. 0 of none.
double share(const Picture& picture, bool only_changed, const std::function<bool(const Element&)>& test);

// Fills in name and detail; false: none of them explains the picture.
bool name_formula(const Picture& picture, Kind& kind);

}  // namespace faultline
