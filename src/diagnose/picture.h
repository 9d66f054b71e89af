// What a residual looks like, element by element: the columns in which anything changed, with what was expected there,
// what came, what rounding allows and the raw bits of both.
#pragma once

#include <cstdint>
#include <vector>

#include "diagnose/observation.h"

namespace faultline {

struct Element {
  int64_t row = 0, column = 0;
  double expected = 0, observed = 0;
  double slack = 0;  // what rounding allows
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

// given: one of the observation's calls; first, size: its columns.
Picture picture_of(const Observation& observation, const at::Tensor& given, int64_t first, int64_t size);

}  // namespace faultline
