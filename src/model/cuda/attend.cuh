// How attention's work is split, and how the parts come together again. A part of the keys gives, per head, the highest
// score m, the sum of 2^(score - m), and the values weighted by the same powers; parts are joined by scaling to the
// common maximum. A part without keys has m = -inf and counts nothing.
#pragma once

#include "model/cuda/element.cuh"

namespace faultline::ops::cuda {

inline constexpr int kAttendWarps = 4, kAttendThreads = 32 * kAttendWarps, kAttendHeads = 8;

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
  shape.splits = shape.splits < 1 ? 1 : shape.splits > 64 ? 64 : shape.splits;
  return shape;
}

// What one block does: tiles begin ... end - 1 of `tile` keys, for `heads` heads from first_head on.
struct Share {
  int64_t sequence, split, first_head, heads, length, begin, end, cache_offset;
};

__device__ __forceinline__ Share share_of(const AttendArguments& a, const AttendShape& shape, int tile) {
  Share share;
  share.sequence = blockIdx.z;
  share.split = blockIdx.x;
  const int64_t kv_head = blockIdx.y / shape.parts, first = blockIdx.y % shape.parts * kAttendHeads;
  share.first_head = kv_head * shape.group + first;
  share.heads = min(static_cast<int64_t>(kAttendHeads), shape.group - first);
  share.length = min(max(a.lengths[share.sequence], int64_t{0}), a.context);
  const int64_t tiles = (share.length + tile - 1) / tile, each = (tiles + shape.splits - 1) / shape.splits;
  share.begin = share.split * each;
  share.end = min(tiles, share.begin + each);
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
  for (int64_t i = threadIdx.x; i < share.heads * a.head_size; i += kAttendThreads) {
    const int head = static_cast<int>(i / a.head_size);
    const int64_t column = i % a.head_size, place = share.sequence * a.heads + share.first_head + head;
    float common = -INFINITY, sum = 0.0f, output = 0.0f;
    for (int warp = 0; warp < kAttendWarps; ++warp) common = fmaxf(common, results.maximum(warp, head));
    for (int warp = 0; warp < kAttendWarps; ++warp) {
      const float scale = part_scale(results.maximum(warp, head), common);
      sum += scale * results.sum(warp, head);
      output += scale * results.output(warp, head)[column];
    }
    if (shape.splits == 1) {
      const float value = share.length == 0 ? 0.0f : output / sum;
      static_cast<T*>(a.out)[place * a.head_size + column] = from_float<T>(value);
      continue;
    }
    const int64_t part = place * shape.splits + share.split;
    if (column == 0) {
      partials.statistics[2 * part] = common;
      partials.statistics[2 * part + 1] = sum;
    }
    partials.outputs[part * a.head_size + column] = output;
  }
}

// Joins the splits of one sequence and head.
template <class T>
__global__ void __launch_bounds__(kAttendThreads) combine_kernel(AttendArguments a, AttendShape shape) {
  begin_kernel();
  const Partials partials(a, shape);
  const int64_t place = blockIdx.x, first = place * shape.splits;
  const bool idle = a.lengths[place / a.heads] <= 0;
  float common = -INFINITY;
  for (int64_t s = 0; s < shape.splits; ++s) common = fmaxf(common, partials.statistics[2 * (first + s)]);
  for (int64_t column = threadIdx.x; column < a.head_size; column += kAttendThreads) {
    float sum = 0.0f, output = 0.0f;
    for (int64_t s = 0; s < shape.splits; ++s) {
      const float scale = part_scale(partials.statistics[2 * (first + s)], common);
      if (scale == 0.0f) continue;
      sum += scale * partials.statistics[2 * (first + s) + 1];
      output += scale * partials.outputs[(first + s) * a.head_size + column];
    }
    static_cast<T*>(a.out)[place * a.head_size + column] = from_float<T>(idle ? 0.0f : output / sum);
  }
}

}  // namespace faultline::ops::cuda
