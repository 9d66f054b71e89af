// How many neighbouring threads the kernels take for one group that exchanges values.
//
// Note [Groups of 32 lanes]
// A group is 32 threads by number, whatever the processor's wavefront is: on NVIDIA a warp; on AMD's wavefronts of 64
// lanes one half, since every exchange there has a width of kWarpLanes (hip_shim/cuda_runtime.h), and on those of 32 a
// whole one. No kernel asks the hardware for its width, votes over more lanes, or counts on lanes outside its group.
// Sums do not depend on it either. The order of additions is fixed by the elements' places (ledger.h, Lanes: 8 -> 1 in
// fp32 within a thread, then 256 -> 1 in fp64: within a group by halving, across groups one after the other), so
// another width would be another order, which the CPU kernels, tests/numeric_test and the portable arithmetic would not
// give. Whole numbers (counts, digests, maxima) have no order at all.
#pragma once

#include <cstdint>

namespace faultline::numeric::cuda {

inline constexpr int kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

}  // namespace faultline::numeric::cuda
