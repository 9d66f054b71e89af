// bf16 products by instructions that multiply small matrices: AMX's tiles, or 64-bit Arm's BFMMLA. An instruction set
// without them takes none. What linear.cpp asks of either: room for x as the instruction wants it, x brought into that
// form, and a range of blocks of outputs.
#pragma once

#include "model/cpu/dispatch.h"

namespace faultline::model::ops::cpu::FAULTLINE_ISA {

#if defined(__AMX_BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
FL_INLINE bool takes_tiles(const LinearArguments& a) { return a.storage == Storage::kBFloat16; }
int64_t tiles_prepared_bytes(const LinearArguments&);
void tiles_prepare(const LinearArguments&);
void tiles_linear(const LinearArguments&, int64_t first_block, int64_t last_block);
#else
FL_INLINE bool takes_tiles(const LinearArguments&) { return false; }
FL_INLINE int64_t tiles_prepared_bytes(const LinearArguments&) { return 0; }
FL_INLINE void tiles_prepare(const LinearArguments&) {}
FL_INLINE void tiles_linear(const LinearArguments&, int64_t, int64_t) {}
#endif

// How many rows of x go through all outputs before the next ones do: as many as stay in the second-level cache, in even
// shares. A product of many rows would otherwise fetch all of x again for every few outputs.
FL_INLINE int64_t rows_at_once(int64_t rows, int64_t bytes_of_row, int64_t step) {
  constexpr int64_t kCacheBytes = 256 << 10;
  int64_t most = kCacheBytes / (bytes_of_row > 0 ? bytes_of_row : 1) / step * step;
  most = most > step ? most : step;
  return rows > most ? ceiling(ceiling(rows, ceiling(rows, most)), step) * step : most;
}

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA
