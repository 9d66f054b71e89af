#include "numeric/ledger.h"

namespace faultline {

void add_to_ledger(const double* partials, int64_t segments, int64_t elements, double* row) {
  double total[kPartialColumns];
  for (int column = 0; column < kPartialColumns; ++column) {
    double value[kTileChunks] = {};
    double max = 0;
    for (int64_t segment = 0; segment < segments; ++segment) {
      const double partial = partials[segment * kPartialColumns + column];
      value[segment % kTileChunks] += partial;
      max = partial > max ? partial : max;
    }
    total[column] = column == kPartialMax ? max : add_tree(value);
  }
  row[kCalls] += 1;
  row[kActiveCalls] += 1;
  row[kElements] += static_cast<double>(elements);
  row[kSelected] += total[kPartialSelected];
  row[kChanged] += total[kPartialChanged];
  row[kNonzero] += total[kPartialNonzero];
  row[kZeroed] += total[kPartialZeroed];
  row[kNonfinite] += total[kPartialNonfinite];
  row[kSaturated] += total[kPartialSaturated];
  row[kSumAbsError] += total[kPartialSumAbs];
  row[kSumSquaredError] += total[kPartialSumSquaredError];
  row[kSumSquaredValue] += total[kPartialSumSquaredValue];
  row[kMaxAbsError] = total[kPartialMax] > row[kMaxAbsError] ? total[kPartialMax] : row[kMaxAbsError];
  row[kSampled] += total[kPartialSampled];
  row[kSumSquaredRelative] += total[kPartialSumRelative];
}

}  // namespace faultline
