// What a residual looks like, element by element: the columns in which anything changed, with what was expected there,
// what came, what rounding allows and the raw bits of both.
#pragma once

#include <cstdint>
#include <vector>

#include "diagnose/observation.h"

namespace faultline::diagnose {

struct Element {
  int64_t row = 0, column = 0;
  double expected = 0, observed = 0;
  double tolerance = 0;  // by what a right answer may differ
  double slack = 0;      // the same, and the rounding of what the fault made of it
  uint64_t expected_bits = 0, observed_bits = 0;
  bool changed = false;
};

struct Picture {
  std::vector<Element> touched;             // all elements of the columns in which anything changed
  std::vector<double> row_max, row_spread;  // of what was expected, over all columns
  int64_t changed = 0;
  int mantissa = 7, width = 16;
  bool expected_zero = true;  // nothing but zero was expected
};

// The number that has these bits in the picture's type.
double value_of_bits(const Picture& picture, uint64_t bits);

// given: one of the observation's calls; first, size: its columns.
Picture picture_of(const Observation& observation, const at::Tensor& given, int64_t first, int64_t size);

}  // namespace faultline::diagnose
