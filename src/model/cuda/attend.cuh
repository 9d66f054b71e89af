// How attention's work is split, and how the parts come together again. A part of the keys gives, per head, the highest
// score m, the sum of 2^(score - m), and the values weighted by the same powers; parts are joined by scaling to the
// common maximum. A part without keys has m = -inf and counts nothing. Warps meet in shared memory. Splits meet, where
// the device has clusters and a few splits do, in the shared memory of their cluster; else by way of device memory in a
// second kernel, which costs some two microseconds more.
#pragma once

#include <cooperative_groups.h>

#include "model/cuda/element.cuh"

namespace faultline::model::ops::cuda {

inline constexpr int kAttendHeads = 8, kMostSplits = 64, kClusterSplits = 8, kCombineThreads = 128;
inline constexpr int64_t kMultiprocessors = 132, kShortContext = 2048;

struct AttendShape {
  int64_t splits;  // of a sequence's keys
  int64_t parts;   // of a kv head's query heads
  int64_t group;   // query heads of a kv head
  bool clustered;  // the splits are one cluster
  int64_t ahead;   // keys of a split to be fetched into the second-level cache before the kernel's turn
};

inline bool device_has_clusters() { return device_major() >= 9; }

// In clusters: a block for each multiprocessor. Few sequences of long context: about four, with at least 64 keys each
// when the cache is full.
inline AttendShape attend_shape(const AttendArguments& a) {
  AttendShape shape{1, 1, a.heads / a.kv_heads, false, 0};
  shape.parts = (shape.group + kAttendHeads - 1) / kAttendHeads;
  const int64_t blocks = a.batch * a.kv_heads * shape.parts, most = (a.context + 63) / 64;
  const bool is_short = a.context <= kShortContext;
  shape.clustered = device_has_clusters() && (is_short || blocks * kClusterSplits >= kMultiprocessors - 4);
  if (shape.clustered) {
    while (shape.splits < kClusterSplits && 2 * shape.splits * blocks <= kMultiprocessors && shape.splits < most)
      shape.splits *= 2;
    // With more blocks than that the memory is busy anyway, and what is fetched in vain costs.
    if (is_short && shape.splits == kClusterSplits) shape.ahead = (a.context + shape.splits - 1) / shape.splits;
    return shape;
  }
  const int64_t wanted = (4 * kMultiprocessors + blocks / 2) / (blocks ? blocks : 1);
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

// Note [Overlap]: the keys and values of this block, were the cache full.
template <class T>
__device__ __forceinline__ void fetch_ahead(const AttendArguments& a, const AttendShape& shape) {
  const int64_t first = shape.ahead * blockIdx.x, keys = min(shape.ahead, a.context - first);
  if (threadIdx.x >= 2 || keys <= 0) return;
  const int64_t head = blockIdx.z * a.kv_heads + blockIdx.y / shape.parts;
  const void* cache = threadIdx.x == 0 ? a.key_cache : a.value_cache;
  prefetch(static_cast<const T*>(cache) + (head * a.context + first) * a.head_size,
           static_cast<uint32_t>(keys * a.head_size * sizeof(T)));
}

// Shared memory of a block: maximum and sum (kWarps, kAttendHeads) each, outputs (…, head_size).
template <int kWarps>
struct WarpResults {
  float* base;
  int64_t head_size;

  __device__ WarpResults(float* shared, int64_t size) : base(shared), head_size(size) {}
  static std::size_t bytes(int64_t head_size) {
    return static_cast<std::size_t>(kWarps * kAttendHeads * (head_size + 2)) * sizeof(float);
  }
  __device__ __forceinline__ float& maximum(int warp, int head) const { return base[warp * kAttendHeads + head]; }
  __device__ __forceinline__ float& sum(int warp, int head) const {
    return base[(kWarps + warp) * kAttendHeads + head];
  }
  __device__ __forceinline__ float* output(int warp, int head) const {
    return base + 2 * kWarps * kAttendHeads + (warp * kAttendHeads + head) * head_size;
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

// Joins the blocks of a cluster, each of which has its part in the place of its warp 0, and writes the result.
template <class T, int kWarps>
__device__ __forceinline__ void join_cluster(const AttendArguments& a, const AttendShape& shape, const Share& share,
                                             const WarpResults<kWarps>& results) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  const int splits = static_cast<int>(shape.splits), size = static_cast<int>(a.head_size);
  T* out = static_cast<T*>(a.out) + (share.sequence * a.heads + share.first_head) * size;
  for (int i = share.split * 32 * kWarps + threadIdx.x; i < share.heads * size; i += splits * 32 * kWarps) {
    float maximum[kClusterSplits], sums[kClusterSplits], outputs[kClusterSplits];
    float common = -INFINITY, sum = 0.0f, output = 0.0f;
#pragma unroll
    for (int rank = 0; rank < kClusterSplits; ++rank) {
      const WarpResults<kWarps> other(cluster.map_shared_rank(results.base, min(rank, splits - 1)), a.head_size);
      maximum[rank] = other.maximum(0, i / size);
      sums[rank] = other.sum(0, i / size);
      outputs[rank] = other.output(0, i / size)[i % size];
      common = fmaxf(common, maximum[rank]);
    }
#pragma unroll
    for (int rank = 0; rank < kClusterSplits; ++rank) {
      if (rank >= splits) break;
      const float scale = part_scale(maximum[rank], common);
      sum += scale * sums[rank];
      output += scale * outputs[rank];
    }
    out[i] = from_float<T>(share.length == 0 ? 0.0f : output / sum);
  }
  cluster.sync();  // none leaves while another reads its memory
#endif
}

// Joins the warps, a head a warp, and writes the result, or the split's part of it.
template <class T, int kWarps>
__device__ __forceinline__ void finish_block(const AttendArguments& a, const AttendShape& shape, const Share& share,
                                             const WarpResults<kWarps>& results) {
  const Partials partials(a, shape);
  const int size = static_cast<int>(a.head_size), lane = threadIdx.x % 32;
  for (int head = threadIdx.x / 32; head < share.heads; head += kWarps) {
    const int64_t place = share.sequence * a.heads + share.first_head + head;
    float common = -INFINITY, sum = 0.0f, scale[kWarps];
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) common = fmaxf(common, results.maximum(warp, head));
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      scale[warp] = part_scale(results.maximum(warp, head), common);
      sum += scale[warp] * results.sum(warp, head);
    }
    __syncwarp();  // all have read what lane 0 now writes
    const int64_t part = place * shape.splits + share.split;
    if (lane == 0 && shape.clustered) results.set(0, head, common, sum);
    if (lane == 0 && !shape.clustered && shape.splits > 1) {
      partials.statistics[2 * part] = common;
      partials.statistics[2 * part + 1] = sum;
    }
    for (int column = lane; column < size; column += 32) {
      float output = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) output += scale[warp] * results.output(warp, head)[column];
      if (shape.splits == 1) {
        static_cast<T*>(a.out)[place * size + column] = from_float<T>(share.length == 0 ? 0.0f : output / sum);
      } else if (shape.clustered) {
        results.output(0, head)[column] = output;
      } else if (share.begin < share.end) {
        partials.outputs[part * size + column] = output;
      }
    }
  }
  if (shape.clustered && shape.splits > 1) join_cluster<T>(a, shape, share, results);
}

// Joins the splits of one sequence and head. tile: as the first kernel had it.
template <class T>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(AttendArguments a, AttendShape shape, int tile) {
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
  for (int column = threadIdx.x; column < size; column += kCombineThreads) {
    float output = 0.0f;
#pragma unroll 8
    for (int i = 0; i < used; ++i) output += scales[i] * partials.outputs[(first + i) * size + column];
    static_cast<T*>(a.out)[place * size + column] = from_float<T>(length == 0 ? 0.0f : output / sum);
  }
}

}  // namespace faultline::model::ops::cuda
