// The ledger's lanes on a GPU: eight fp32 registers a thread for each sum, reduced once per block in the order that
// ledger.h fixes; the last block of a launch adds all segments' partial sums to the ledger row and advances the call.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/error.h"
#include "numeric/cuda/kernels.h"
#include "numeric/dtype.h"

namespace faultline::cuda {

inline constexpr int kThreads = kTileChunks;

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw RuntimeFailure(std::string(kernel) + ": " + cudaGetErrorString(error));
}

struct LaneEvidence {
  float sum_abs[kChunk] = {};
  float sum_squared_error[kChunk] = {};
  float sum_squared_value[kChunk] = {};
  float max = 0;
  float relative = 0;
  uint32_t selected = 0, changed = 0, nonzero = 0, zeroed = 0, nonfinite = 0, saturated = 0, sampled = 0;
};

// One element's evidence. `j` must be a compile-time constant after unrolling.
__device__ __forceinline__ void add_element(LaneEvidence& lane, int j, float x, float y, bool changed, bool selected, bool saturated, bool sampled) {
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
  if (sampled && selected && finite && x != 0.0f) {
    const float relative = e / x;
    lane.relative = fused_multiply_add(relative, relative, lane.relative);
    lane.sampled += 1;
  }
}

__device__ __forceinline__ double warp_add(double value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xFFFFFFFFu, value, offset);
  return value;
}

// The block's lanes -> one row of partial sums.
__device__ __forceinline__ void write_partial(const LaneEvidence& lane, double* partial) {
  __shared__ double sums[4][kThreads / 32];
  __shared__ uint32_t counts[8][kThreads / 32];
  const int warp = threadIdx.x / 32;
  const double abs = warp_add(static_cast<double>(add_chunk_lanes(lane.sum_abs)));
  const double error = warp_add(static_cast<double>(add_chunk_lanes(lane.sum_squared_error)));
  const double value = warp_add(static_cast<double>(add_chunk_lanes(lane.sum_squared_value)));
  const double relative = __any_sync(0xFFFFFFFFu, lane.sampled) ? warp_add(static_cast<double>(lane.relative)) : 0.0;
  const uint32_t column[8] = {__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(lane.max)),
                              __reduce_add_sync(0xFFFFFFFFu, lane.selected),
                              __reduce_add_sync(0xFFFFFFFFu, lane.changed),
                              __reduce_add_sync(0xFFFFFFFFu, lane.nonzero),
                              __reduce_add_sync(0xFFFFFFFFu, lane.zeroed),
                              __reduce_add_sync(0xFFFFFFFFu, lane.nonfinite),
                              __reduce_add_sync(0xFFFFFFFFu, lane.saturated),
                              __reduce_add_sync(0xFFFFFFFFu, lane.sampled)};
  if (threadIdx.x % 32 == 0) {
    sums[0][warp] = abs;
    sums[1][warp] = error;
    sums[2][warp] = value;
    sums[3][warp] = relative;
#pragma unroll
    for (int k = 0; k < 8; ++k) counts[k][warp] = column[k];
  }
  __syncthreads();
  if (threadIdx.x < kPartialColumns) {
    const int k = threadIdx.x;
    double total = 0;
    if (k < 4) {
      for (int w = 0; w < kThreads / 32; ++w) total += sums[k][w];
    } else if (k == kPartialMax) {
      float max = 0;
      for (int w = 0; w < kThreads / 32; ++w) max = fmaxf(max, __uint_as_float(counts[0][w]));
      total = static_cast<double>(max);
    } else {
      uint64_t count = 0;
      for (int w = 0; w < kThreads / 32; ++w) count += counts[k - 4][w];
      total = static_cast<double>(count);
    }
    partial[k] = total;
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

// Run by the last block: 256 strided sums a column, then the tree; then the ledger row.
__device__ __forceinline__ void add_to_ledger_row(const double* partials, int64_t segments, int64_t elements, double* row) {
  __shared__ double sums[kPartialColumns][kThreads / 32];
  double value[kPartialColumns] = {};
  __threadfence();
  for (int64_t segment = threadIdx.x; segment < segments; segment += kThreads) {
    const double* partial = partials + segment * kPartialColumns;
#pragma unroll
    for (int k = 0; k < kPartialColumns; ++k) {
      const double part = __ldcg(partial + k);
      value[k] = k == kPartialMax ? fmax(value[k], part) : value[k] + part;
    }
  }
#pragma unroll
  for (int k = 0; k < kPartialColumns; ++k) {
    if (k == kPartialMax) {
      for (int offset = 16; offset > 0; offset /= 2) value[k] = fmax(value[k], __shfl_down_sync(0xFFFFFFFFu, value[k], offset));
    } else {
      value[k] = warp_add(value[k]);
    }
    if (threadIdx.x % 32 == 0) sums[k][threadIdx.x / 32] = value[k];
  }
  __syncthreads();
  if (threadIdx.x >= kPartialColumns) return;
  const int k = threadIdx.x;
  double total = 0;
  for (int w = 0; w < kThreads / 32; ++w) total = k == kPartialMax ? fmax(total, sums[k][w]) : total + sums[k][w];
  constexpr int kColumn[kPartialColumns] = {kSumAbsError, kSumSquaredError, kSumSquaredValue, kSumSquaredRelative,
                                            kMaxAbsError, kSelected,        kChanged,         kNonzero,
                                            kZeroed,      kNonfinite,       kSaturated,       kSampled};
  double* cell = row + kColumn[k];
  *cell = k == kPartialMax ? fmax(*cell, total) : *cell + total;
  if (k == 0) {
    row[kActiveCalls] += 1;
    row[kElements] += static_cast<double>(elements);
  }
}

// The end of every fault kernel. `acted`: the lifetime let the fault act in this call.
__device__ __forceinline__ void finish(const LaneEvidence& lane, const Evidence& evidence, int64_t segments, int64_t elements, bool acted) {
  if (evidence.ledger != nullptr && acted) write_partial(lane, evidence.partials + blockIdx.x * kPartialColumns);
  if (evidence.ledger == nullptr && evidence.control == nullptr) return;
  uint32_t* ticket = evidence.control != nullptr ? &evidence.control->ticket
                                                 : reinterpret_cast<uint32_t*>(evidence.ledger + kLedgerReserved);
  if (!is_last_block(ticket)) return;
  if (evidence.ledger != nullptr && acted) add_to_ledger_row(evidence.partials, segments, elements, evidence.ledger);
  if (threadIdx.x == 0) {
    if (evidence.ledger != nullptr) evidence.ledger[kCalls] += 1;
    if (evidence.control != nullptr) evidence.control->call += 1;
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

}  // namespace faultline::cuda
