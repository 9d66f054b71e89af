// How attention's work is split, and how the parts come together again. A part of the keys gives, per head, the highest
// score m, the sum of 2^(score - m), and the values weighted by the same powers; parts are joined by scaling to the
// common maximum. A part without keys has m = -inf and counts nothing.
#pragma once

#include "model/cuda/element.cuh"

namespace faultline::ops::cuda {

inline constexpr int kAttendWarps = 4, kAttendThreads = 32 * kAttendWarps, kAttendHeads = 8, kMostSplits = 64;

struct AttendShape {
  int64_t splits;  // of a sequence's keys
  int64_t parts;   // of a kv head's query heads
  int64_t group;   // query heads of a kv head
};

// About four blocks for each of 132 multiprocessors, but at least a tile of keys a warp when the cache is full.
inline AttendShape attend_shape(const AttendArguments& a) {
  AttendShape shape{1, 1, a.heads / a.kv_heads};
  shape.parts = (shape.group + kAttendHeads - 1) / kAttendHeads;
  const int64_t blocks = a.batch * a.kv_heads * shape.parts, wanted = (528 + blocks / 2) / (blocks ? blocks : 1);
  const int64_t most = (a.context + 63) / 64;
  shape.splits = wanted < most ? wanted : most;
  shape.splits = shape.splits < 1 ? 1 : shape.splits > kMostSplits ? kMostSplits : shape.splits;
  return shape;
}

// What one block does: tiles begin ... end - 1 of `tile` keys, for `heads` heads from first_head on.
struct Share {
  int sequence, split, first_head, heads, length, begin, end;
  int64_t cache_offset;
};

// Tiles of one split; splits beyond the last tile have none.
__device__ __forceinline__ int tiles_each(int length, int tile, int splits) {
  return ((length + tile - 1) / tile + splits - 1) / splits;
}

__device__ __forceinline__ int filled_length(const AttendArguments& a, int sequence) {
  return static_cast<int>(min(max(a.lengths[sequence], int64_t{0}), a.context));
}

__device__ __forceinline__ Share share_of(const AttendArguments& a, const AttendShape& shape, int tile) {
  Share share;
  share.sequence = static_cast<int>(blockIdx.z);
  share.split = static_cast<int>(blockIdx.x);
  const int parts = static_cast<int>(shape.parts), group = static_cast<int>(shape.group);
  const int kv_head = static_cast<int>(blockIdx.y) / parts, first = static_cast<int>(blockIdx.y) % parts * kAttendHeads;
  share.first_head = kv_head * group + first;
  share.heads = min(kAttendHeads, group - first);
  share.length = filled_length(a, share.sequence);
  const int each = tiles_each(share.length, tile, static_cast<int>(shape.splits));
  share.begin = share.split * each;
  share.end = min((share.length + tile - 1) / tile, share.begin + each);
  share.cache_offset = (share.sequence * a.kv_heads + kv_head) * a.context * a.head_size;
  return share;
}

// Shared memory of a block: maximum and sum (kAttendWarps, kAttendHeads) each, outputs (…, head_size).
struct WarpResults {
  float* base;
  int64_t head_size;

  __device__ WarpResults(float* shared, int64_t size) : base(shared), head_size(size) {}
  static std::size_t bytes(int64_t head_size) {
    return static_cast<std::size_t>(kAttendWarps * kAttendHeads * (head_size + 2)) * sizeof(float);
  }
  __device__ __forceinline__ float& maximum(int warp, int head) const { return base[warp * kAttendHeads + head]; }
  __device__ __forceinline__ float& sum(int warp, int head) const {
    return base[(kAttendWarps + warp) * kAttendHeads + head];
  }
  __device__ __forceinline__ float* output(int warp, int head) const {
    return base + 2 * kAttendWarps * kAttendHeads + (warp * kAttendHeads + head) * head_size;
  }
  __device__ __forceinline__ void set(int warp, int head, float highest, float total) const {
    maximum(warp, head) = highest;
    sum(warp, head) = total;
  }
};

__device__ __forceinline__ float part_scale(float maximum, float common) {
  return maximum == -INFINITY ? 0.0f : exp2f(maximum - common);
}

// Partial results in device memory: m and sum of (B, H, splits), then outputs (B, H, splits, D).
struct Partials {
  float* statistics;
  float* outputs;
  __device__ Partials(const AttendArguments& a, const AttendShape& shape)
      : statistics(a.partial), outputs(a.partial + 2 * a.batch * a.heads * shape.splits) {}
};

// Joins the warps and writes the result, or the split's part of it.
template <class T>
__device__ __forceinline__ void finish_block(const AttendArguments& a, const AttendShape& shape, const Share& share,
                                             const WarpResults& results) {
  const Partials partials(a, shape);
  const int size = static_cast<int>(a.head_size);
  for (int head = 0; head < share.heads; ++head) {
    const int64_t place = share.sequence * a.heads + share.first_head + head;
    float common = -INFINITY, sum = 0.0f, scale[kAttendWarps];
#pragma unroll
    for (int warp = 0; warp < kAttendWarps; ++warp) common = fmaxf(common, results.maximum(warp, head));
#pragma unroll
    for (int warp = 0; warp < kAttendWarps; ++warp) {
      scale[warp] = part_scale(results.maximum(warp, head), common);
      sum += scale[warp] * results.sum(warp, head);
    }
    const int64_t part = place * shape.splits + share.split;
    if (shape.splits > 1 && threadIdx.x == 0) {
      partials.statistics[2 * part] = common;
      partials.statistics[2 * part + 1] = sum;
    }
    for (int column = threadIdx.x; column < size; column += kAttendThreads) {
      float output = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kAttendWarps; ++warp) output += scale[warp] * results.output(warp, head)[column];
      if (shape.splits == 1) {
        static_cast<T*>(a.out)[place * size + column] = from_float<T>(share.length == 0 ? 0.0f : output / sum);
      } else if (share.begin < share.end) {
        partials.outputs[part * size + column] = output;
      }
    }
  }
}

// Joins the splits of one sequence and head. tile: as the first kernel had it.
template <class T>
__global__ void __launch_bounds__(kAttendThreads) combine_kernel(AttendArguments a, AttendShape shape, int tile) {
  begin_kernel();
  __shared__ float scales[kMostSplits], sums[kMostSplits];
  const Partials partials(a, shape);
  const int64_t place = blockIdx.x, first = place * shape.splits;
  const int splits = static_cast<int>(shape.splits), size = static_cast<int>(a.head_size);
  const int length = filled_length(a, static_cast<int>(place / a.heads)), each = tiles_each(length, tile, splits);
  const int used = each == 0 ? 0 : min(splits, ((length + tile - 1) / tile + each - 1) / each);
  const int s = threadIdx.x;
  if (s < used) {
    scales[s] = partials.statistics[2 * (first + s)];
    sums[s] = partials.statistics[2 * (first + s) + 1];
  }
  __syncthreads();
  float common = -INFINITY, sum = 0.0f;
  for (int i = 0; i < used; ++i) common = fmaxf(common, scales[i]);
  __syncthreads();
  if (s < used) scales[s] = part_scale(scales[s], common);
  __syncthreads();
  for (int i = 0; i < used; ++i) sum += scales[i] * sums[i];
  for (int column = threadIdx.x; column < size; column += kAttendThreads) {
    float output = 0.0f;
#pragma unroll 8
    for (int i = 0; i < used; ++i) output += scales[i] * partials.outputs[(first + i) * size + column];
    static_cast<T*>(a.out)[place * size + column] = from_float<T>(length == 0 ? 0.0f : output / sum);
  }
}

}  // namespace faultline::ops::cuda
