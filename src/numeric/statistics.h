// What a fault measures itself against: the largest magnitude, the mean magnitude or the standard deviation of a
// token's row, of a channel or of the whole tensor, over finite elements only. Sums are fp64 in one order on every
// device: row: 256 lanes (column mod 256), lanes 8 -> 1, then 32 -> 1 by halving; channel: groups of 64 rows, then the
// groups in order; tensor: the traversal of ledger.h.
#pragma once

#include "numeric/arguments.h"
#include "numeric/ledger.h"

namespace faultline::numeric {

inline constexpr int kRowLanes = 256;
inline constexpr int64_t kRowGroup = 64;

enum SumColumn : int { kSumCount, kSumMax, kSumAbs, kSum, kSumSquares, kSumColumns };

struct ReferenceArguments {
  Dtype dtype = Dtype::kFloat32;
  Reference kind = Reference::kMaxAbs;
  int64_t elements = 0;
  int64_t columns = 1;
};

FL_HD float reference_value(Reference kind, double count, double max, double sum_abs, double sum, double sum_squares) {
  if (kind == Reference::kMaxAbs) return static_cast<float>(max);
  if (!(count > 0)) return 0.0f;
  if (kind == Reference::kMeanAbs) return static_cast<float>(sum_abs / count);
  const double mean = sum / count;
  const double variance = sum_squares / count - mean * mean;
  return variance > 0 ? static_cast<float>(square_root(variance)) : 0.0f;
}

}  // namespace faultline::numeric
