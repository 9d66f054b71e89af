// bf16 products by tile instructions; an instruction set without them takes none.
#pragma once

#include "model/cpu/dispatch.h"

namespace faultline::ops::cpu::FAULTLINE_ISA {

#if defined(__AMX_BF16__)
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

}  // namespace faultline::ops::cpu::FAULTLINE_ISA
