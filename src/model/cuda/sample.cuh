// The state of a row while a token is drawn, in device memory between the kernels of sample.cu, and the sums, scans and
// histograms that they share.
#pragma once

#include "model/cuda/element.cuh"
#include "model/sampling.h"

namespace faultline::model::ops::cuda {

inline constexpr int kSampleThreads = 256, kChunk = kSampleThreads * kOctet, kBins = 2048;
inline constexpr int kMostChunks = 128;  // of a block
inline constexpr int kChunksOfRow = static_cast<int>(sampling::kMaxVocabulary / kChunk);

// Where the kept tokens end, narrowed so far: logits whose order starts with `prefix`, of which `tokens` may still be
// kept or `mass` is still wanted, whichever comes first.
struct Cut {
  int64_t tokens;
  uint64_t mass;
  uint32_t prefix;
  uint32_t padding;
};

struct Level {
  unsigned long long mass[kBins];
  uint32_t count[kBins];
};

struct alignas(16) RowState {  // all zeros at the start
  unsigned long long total, best;
  uint32_t maximum, has_nan;
  Cut cut[3];
  Level level[3];
  uint32_t ties[kChunksOfRow];  // of the last kept token, by chunk
};

struct Row {
  float maximum, scale;
  int64_t key, position;
  bool greedy, is_cut;
};

__device__ __forceinline__ Row row_of(const SampleArguments& a, const RowState& state) {
  const int64_t b = blockIdx.y;
  Row row;
  row.maximum = sampling::logit_of(state.maximum);
  row.greedy = sampling::is_greedy(a.temperature[b]);
  row.scale = sampling::inverse_temperature(a.temperature[b]);
  row.key = a.key[b];
  row.position = a.position[b];
  row.is_cut = !row.greedy && ((a.top_k[b] > 0 && a.top_k[b] < a.vocabulary) || a.top_p[b] < 1.0f);
  return row;
}

__device__ __forceinline__ Cut whole_row(const SampleArguments& a, const RowState& state) {
  const int64_t k = a.top_k[blockIdx.y];
  return {k > 0 ? k : INT64_MAX, sampling::mass_target(a.top_p[blockIdx.y], state.total), 0, 0};
}

// The sum over all threads with a lower index.
__device__ __forceinline__ uint64_t sum_of_earlier_threads(uint64_t value) {
  __shared__ uint64_t warps[kSampleThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sum = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t other = __shfl_up_sync(0xFFFFFFFFu, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warps[w];
  return sum - value;
}

// In every thread.
__device__ __forceinline__ uint64_t block_sum(uint64_t value) {
  __shared__ uint64_t total;
  const uint64_t before = sum_of_earlier_threads(value);
  if (threadIdx.x == kSampleThreads - 1) total = before + value;
  __syncthreads();
  return total;
}

__device__ __forceinline__ uint64_t block_max(uint64_t value) {
  __shared__ uint64_t warps[kSampleThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  for (int w = 0; w < kSampleThreads / 32; ++w) value = max(value, warps[w]);
  return value;
}

// A block's counts. Weights, at most 2^40, are added in three pieces, so that those of a block (kMostChunks chunks) fit
// 32-bit counters, whose atomics shared memory has in hardware.
struct Histogram {
  uint32_t count[kBins], low[kBins], middle[kBins], high[kBins];

  __device__ __forceinline__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += kSampleThreads) count[i] = low[i] = middle[i] = high[i] = 0;
    __syncthreads();
  }
  __device__ __forceinline__ void add(uint32_t bin, uint64_t weight) {
    atomicAdd(&count[bin], 1u);
    const uint32_t pieces[3] = {static_cast<uint32_t>(weight) & 0x3FFFu, static_cast<uint32_t>(weight >> 14) & 0x3FFFu,
                                static_cast<uint32_t>(weight >> 28)};
    if (pieces[0]) atomicAdd(&low[bin], pieces[0]);
    if (pieces[1]) atomicAdd(&middle[bin], pieces[1]);
    if (pieces[2]) atomicAdd(&high[bin], pieces[2]);
  }
  __device__ __forceinline__ void add_to(Level& level) {
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kSampleThreads) {
      if (count[i] == 0) continue;
      atomicAdd(&level.count[i], count[i]);
      atomicAdd(&level.mass[i], (static_cast<unsigned long long>(high[i]) << 28) +
                                    (static_cast<unsigned long long>(middle[i]) << 14) + low[i]);
    }
  }
};

__device__ __forceinline__ bool is_reached(const Cut& cut, uint64_t tokens, uint64_t mass) {
  return tokens >= static_cast<uint64_t>(cut.tokens) || (cut.mass != sampling::kNoMassLimit && mass >= cut.mass);
}

// The bin, from the highest down, in which the cut lies: appended to the prefix, with what is left to take from it. A
// level of fewer than kBins (1 << bits) leaves the upper ones empty.
__device__ __forceinline__ Cut narrowed(const Cut& cut, const Level& level, int bits) {
  __shared__ Cut found;
  constexpr int kEach = kBins / kSampleThreads;
  const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kEach;
  uint64_t own_tokens = 0, own_mass = 0, each_mass[kEach];
  uint32_t each_count[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    each_count[i] = level.count[top - i];
    each_mass[i] = level.mass[top - i];
    own_tokens += each_count[i];
    own_mass += each_mass[i];
  }
  uint64_t tokens = sum_of_earlier_threads(own_tokens), mass = sum_of_earlier_threads(own_mass);
  if (!is_reached(cut, tokens, mass) && is_reached(cut, tokens + own_tokens, mass + own_mass)) {
    bool done = false;
    found = cut;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (done) continue;
      done = is_reached(cut, tokens + each_count[i], mass + each_mass[i]);
      if (!done) {
        tokens += each_count[i];
        mass += each_mass[i];
        continue;
      }
      found.prefix = cut.prefix << bits | static_cast<uint32_t>(top - i);
      if (cut.tokens != INT64_MAX) found.tokens -= static_cast<int64_t>(tokens);
      if (cut.mass != sampling::kNoMassLimit) found.mass -= mass;
    }
  }
  __syncthreads();
  return found;
}

// Of tokens that are all equal to the last kept one: how many are kept.
__device__ __forceinline__ int64_t ties_kept(const Cut& cut, uint64_t weight) {
  if (cut.mass == sampling::kNoMassLimit || weight == 0) return cut.tokens;
  const auto by_mass = static_cast<int64_t>((cut.mass + weight - 1) / weight);
  return by_mass < cut.tokens ? by_mass : cut.tokens;
}

}  // namespace faultline::model::ops::cuda
