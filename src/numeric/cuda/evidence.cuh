// The ledger's lanes on a GPU: eight fp32 registers a thread for each sum, reduced once per block in the order that
// ledger.h fixes. Each block then adds its exact sums and counts to the ledger row by integer atomics and leaves: no
// block waits for another, which is what makes a small tap cheap.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/error.h"
#include "numeric/cuda/kernels.h"
#include "numeric/cuda/lanes.cuh"
#include "numeric/dtype.h"

namespace faultline::numeric::cuda {

inline constexpr int kThreads = kTileChunks;

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw RuntimeFailure(std::string(kernel) + ": " + cudaGetErrorString(error));
}

bool kernels_overlap();  // on the current device (gaussian.cu)

// Note [Overlap]
// A fault kernel is launched so that it may begin while the kernel before it ends (programmatic dependent launch): what
// it costs beside small products is mostly the time between kernels. It waits in begin(), before which it may read
// nothing that a kernel writes. In vLLM's graphs at batch 1 a step took 2.17 ms so and 2.37 without (1.89 clean).

// One fault kernel: a block for each segment.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Traversal& traversal, cudaStream_t stream,
            const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(traversal.segments));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = kernels_overlap() ? 1 : 0;
  (void)cudaLaunchKernelEx(&config, kernel, arguments...);
  check_launch(name);
}

// Shared memory has no constructors: room for values of a type that has one.
template <class Type, int kCount>
struct SharedRoom {
  alignas(Type) unsigned char bytes[kCount * sizeof(Type)];
  __device__ __forceinline__ Type& operator[](int i) { return reinterpret_cast<Type*>(bytes)[i]; }
};

struct LaneEvidence {
  float sum_abs[kChunk] = {};
  float sum_squared_error[kChunk] = {};
  float sum_squared_value[kChunk] = {};
  float max = 0;
  float relative = 0;
  uint32_t selected = 0, changed = 0, nonzero = 0, zeroed = 0, nonfinite = 0, saturated = 0, sampled = 0;
};

// One element's evidence. `normal`: x is a normal number of its dtype. `j` must be a compile-time constant after
// unrolling.
__device__ __forceinline__ void add_element(LaneEvidence& lane, int j, float x, float y, bool changed, bool selected,
                                            bool saturated, bool sampled, bool normal) {
  const bool finite = is_finite(x) && is_finite(y);
  const float e = finite ? y - x : 0.0f;
  const float clean = finite ? x : 0.0f;
  lane.sum_abs[j] = lane.sum_abs[j] + magnitude(e);
  lane.sum_squared_error[j] = fused_multiply_add(e, e, lane.sum_squared_error[j]);
  lane.sum_squared_value[j] = fused_multiply_add(clean, clean, lane.sum_squared_value[j]);
  lane.max = fmaxf(lane.max, magnitude(e));
  lane.selected += selected;
  lane.changed += changed;
  lane.nonzero += x != 0.0f;
  lane.zeroed += x != 0.0f && y == 0.0f;
  lane.nonfinite += !is_finite(y);
  lane.saturated += saturated;
  if (sampled && selected && finite && normal) {
    const float relative = relative_error(e, x);
    lane.relative = fused_multiply_add(relative, relative, lane.relative);
    lane.sampled += 1;
  }
}

// Four sums over a warp at once, each by halving as ledger.h has it: half the lanes take over two of the sums, a
// quarter one. Sum k ends in lanes 8k … 8k + 7.
__device__ __forceinline__ double warp_sums(const double (&sum)[kPartialSums]) {
  static_assert(kPartialSums == 4 && kWarpLanes == 32);  // Note [Groups of 32 lanes]
  const bool high = threadIdx.x & 16, odd = threadIdx.x & 8;
  const double even_sum = (high ? sum[2] : sum[0]) + __shfl_xor_sync(kAllLanes, high ? sum[0] : sum[2], 16);
  const double odd_sum = (high ? sum[3] : sum[1]) + __shfl_xor_sync(kAllLanes, high ? sum[1] : sum[3], 16);
  double total = (odd ? odd_sum : even_sum) + __shfl_xor_sync(kAllLanes, odd ? even_sum : odd_sum, 8);
  for (int offset = 4; offset > 0; offset /= 2) total += __shfl_xor_sync(kAllLanes, total, offset);
  return total;
}

__device__ __forceinline__ void add_word(uint64_t* word, uint64_t value) {
  if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
}

// The block's lanes -> the ledger row.
__device__ __forceinline__ void add_to_ledger(const LaneEvidence& lane, uint64_t* row) {
  __shared__ double sums[kPartialSums][kThreads / kWarpLanes];
  __shared__ uint32_t counts[kPartialCounts + 1][kThreads / kWarpLanes];
  const int warp = threadIdx.x / kWarpLanes, place = threadIdx.x % kWarpLanes;
  const double total = warp_sums(
      {static_cast<double>(add_chunk_lanes(lane.sum_abs)), static_cast<double>(add_chunk_lanes(lane.sum_squared_error)),
       static_cast<double>(add_chunk_lanes(lane.sum_squared_value)), static_cast<double>(lane.relative)});
  if (place % 8 == 0) sums[place / 8][warp] = total;
  const uint32_t own[kPartialCounts] = {lane.selected,  lane.changed,   lane.nonzero, lane.zeroed,
                                        lane.nonfinite, lane.saturated, lane.sampled};
  const bool rare = __any_sync(kAllLanes, lane.zeroed | lane.nonfinite | lane.saturated | lane.sampled);
  const uint32_t max = __reduce_max_sync(kAllLanes, __float_as_uint(lane.max));
#pragma unroll
  for (int k = 0; k < kPartialCounts; ++k) {
    const uint32_t count = k < kCountZeroed || rare ? __reduce_add_sync(kAllLanes, own[k]) : 0;
    if (place == 0) counts[k][warp] = count;
  }
  if (place == 0) counts[kPartialCounts][warp] = max;
  __syncthreads();
  const int k = threadIdx.x;
  if (k < kPartialSums) {
    double all = sums[k][0];
#pragma unroll
    for (int w = 1; w < kThreads / kWarpLanes; ++w) all += sums[k][w];
    const Digits digits = digits_of(all);
#pragma unroll
    for (int d = 0; d < 3; ++d) add_word(row + kWordSums + k * kDigits + digits.first + d, digits.digit[d]);
    if (digits.overflow) atomicOr(reinterpret_cast<unsigned long long*>(row + kWordOverflow), 1ull);
  } else if (k < kPartialSums + kPartialCounts) {
    uint32_t all = 0;
#pragma unroll
    for (int w = 0; w < kThreads / kWarpLanes; ++w) all += counts[k - kPartialSums][w];
    add_word(row + kWordCounts + k - kPartialSums, all);
  } else if (k == kPartialSums + kPartialCounts) {
    uint32_t bits = 0;
#pragma unroll
    for (int w = 0; w < kThreads / kWarpLanes; ++w) bits = ::max(bits, counts[kPartialCounts][w]);
    const double largest = static_cast<double>(__uint_as_float(bits));
    if (largest > 0)
      atomicMax(reinterpret_cast<unsigned long long*>(row + kWordMax),
                static_cast<unsigned long long>(__double_as_longlong(largest)));
  }
}

// True in every thread of the block that finished last. Resets the ticket.
__device__ __forceinline__ bool is_last_block(uint32_t* ticket) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  return last;
}

// The begin of every fault kernel (Note [Overlap]).
__device__ __forceinline__ Control begin(const Control& given, const Evidence& evidence) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  return evidence.control != nullptr ? started(*evidence.control) : given;
}

// This block's share of the call in the control row's progress (Note [Control]): after all its threads have read the
// row, and early, so that nothing waits for it.
__device__ __forceinline__ void advance(const Evidence& evidence) {
  __syncthreads();
  if (evidence.control != nullptr && threadIdx.x == 0)
    add_word(&evidence.control->progress, blockIdx.x == 0 ? kProgressPerCall - (gridDim.x - 1) : 1);
}

// The end of every fault kernel. `acted`: the lifetime let the fault act in this call.
template <bool kLedger = true>
__device__ __forceinline__ void finish(const LaneEvidence& lane, const Evidence& evidence, int64_t elements,
                                       bool acted) {
  if (!kLedger || evidence.ledger == nullptr) return;
  if (acted) add_to_ledger(lane, evidence.ledger + blockIdx.x % kLedgerRows * kRowWords);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    add_word(evidence.ledger + kWordCalls, 1);
    if (acted)
      add_word(evidence.ledger + kWordActive, 1),
          add_word(evidence.ledger + kWordElements, static_cast<uint64_t>(elements));
  }
}

// Eight elements from memory, by two 16-byte loads at most where the tensor allows it.
template <class Bits>
struct alignas(16) Chunk {
  Bits bits[kChunk];
};

template <class Bits>
__device__ __forceinline__ Chunk<Bits> load_chunk(const Bits* data, int64_t first, int count) {
  Chunk<Bits> chunk;
  if (count == kChunk && (reinterpret_cast<uintptr_t>(data + first) & 15u) == 0) {
    const uint4* from = reinterpret_cast<const uint4*>(data + first);
    uint4* to = reinterpret_cast<uint4*>(chunk.bits);
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(Bits)) / 2; ++k) to[k] = from[k];
  } else {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) chunk.bits[j] = j < count ? data[first + j] : Bits{0};
  }
  return chunk;
}

template <class Bits>
__device__ __forceinline__ void store_chunk(Bits* data, int64_t first, int count, const Chunk<Bits>& chunk) {
  if (count == kChunk && (reinterpret_cast<uintptr_t>(data + first) & 15u) == 0) {
    uint4* to = reinterpret_cast<uint4*>(data + first);
    const uint4* from = reinterpret_cast<const uint4*>(chunk.bits);
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(Bits)) / 2; ++k) to[k] = from[k];
  } else {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (j < count) data[first + j] = chunk.bits[j];
    }
  }
}

}  // namespace faultline::numeric::cuda
