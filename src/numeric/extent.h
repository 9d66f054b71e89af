// `extent:` — which elements of a tensor a fault may touch: exact rows, columns, elements or coordinates, and of these
// a random share of units that break together. What a person wrote is resolved for one tensor's shape here (an index
// may count from the end); kernels get plain numbers and decide element by element (extent_selects in arithmetic.h).
#pragma once

#include <array>
#include <vector>

#include "base/config/schema.h"
#include "numeric/arguments.h"

namespace faultline::numeric {

inline constexpr int64_t kToTheEnd = INT64_MAX;  // of a range: '8-'

struct ExtentSpec {
  double fraction = 1;
  Structure structure = Structure::kAll;
  int32_t tile_rows = 1;
  int32_t tile_columns = 1;
  int32_t period = 32;
  // Negative numbers count from the end. None: all.
  std::vector<IndexRange> rows = {}, columns = {}, elements = {};
  std::vector<std::array<int64_t, 2>> coordinates = {};  // at: [[row, column], …]

  bool is_exact() const { return !(rows.empty() && columns.empty() && elements.empty() && coordinates.empty()); }
  bool is_partial() const { return fraction < 1 || is_exact(); }
};

Schema extent_schema();
ExtentSpec read_extent(const Node& extent);  // validated
Extent lower_extent(const ExtentSpec& spec, int64_t rows, int64_t columns);

}  // namespace faultline::numeric
