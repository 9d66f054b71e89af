// One new token of each sequence attends to the filled part of its cache (flash decoding). The keys of a sequence and
// kv head are split over a number of blocks that depends on shapes alone, never on lengths, so that a captured graph
// stays right as sequences grow; a block's warps take tiles of sixteen keys in turn. All query heads of a group (eight
// at a time) share one read of K and V. Each warp keeps its own running maximum, sum and output; they are joined in a
// fixed order (attend.cuh).
#include "model/cuda/attend.cuh"
#include "model/cuda/mma.cuh"

namespace faultline::model::ops::cuda {
namespace {

constexpr int kTile = 16;  // keys
constexpr int kWarps = 4;

// A lane's share of sixteen keys and values, Note [Fragments]: key rows g and 8 + g at columns 32 j + 8 c; values of
// the keys 2 c, 2 c + 1, 8 + 2 c, 9 + 2 c at columns 64 s + 8 g.
template <int kSlabs>
struct Tile {
  uint4 key[2][2 * kSlabs];
  uint4 value[kSlabs][4];

  __device__ __forceinline__ void load_keys(const uint16_t* keys, int left, int head_size) {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 8 * half + g;
#pragma unroll
      for (int j = 0; j < 2 * kSlabs; ++j) {
        const int column = 32 * j + 8 * c;
        key[half][j] = row < left && column < head_size ? load_once(keys + row * head_size + column) : uint4{};
      }
    }
  }
  __device__ __forceinline__ void load_values(const uint16_t* values, int left, int head_size) {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {
      const int column = 64 * s + 8 * g;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 8 * (i / 2) + 2 * c + i % 2;
        value[s][i] = row < left && column < head_size ? load_once(values + row * head_size + column) : uint4{};
      }
    }
  }
};

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Head g's scores, softmax weights and output: lane 4 g + c holds the scores of keys 2 c, 2 c + 1 (+ 8) and, in
// output[s][i], the columns 64 s + 16 c + i and 64 s + 16 c + 8 + i.
template <class T, int kSlabs>
struct Running {
  float maximum = -INFINITY, sum = 0.0f;
  float output[kSlabs][8][2] = {};

  float score[2][2];

  // query: of head g at column 8 c, in shared memory
  __device__ __forceinline__ void add_keys(const Tile<kSlabs>& tile, const uint4* query, int left, float scale) {
    const int c = threadIdx.x % 4;
    float even[2][2] = {}, odd[2][2] = {};
#pragma unroll
    for (int j = 0; j < 2 * kSlabs; ++j) {
      const uint4 q = query[4 * j];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 k = tile.key[half][j];
        multiply_add<T>(even[half], q.x, q.y, k.x, k.y);
        multiply_add<T>(odd[half], q.z, q.w, k.z, k.w);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, at = i % 2;
      score[half][at] = 8 * half + 2 * c + at < left ? (even[half][at] + odd[half][at]) * scale : -INFINITY;
    }
  }

  __device__ __forceinline__ void add_values(const Tile<kSlabs>& tile) {
    float highest = fmaxf(fmaxf(score[0][0], score[0][1]), fmaxf(score[1][0], score[1][1]));
    highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFFu, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFFu, highest, 2));
    highest = fmaxf(highest, maximum);
    const float base = highest == -INFINITY ? 0.0f : highest, keep = exp2f(maximum - base);
    maximum = highest;
    uint32_t weights[2];
    sum *= keep;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The weights are summed as the tensor cores will see them: rounded.
      const T low = from_float<T>(exp2f(score[half][0] - base)), high = from_float<T>(exp2f(score[half][1] - base));
      sum += to_float(low) + to_float(high);
      weights[half] = pack(low, high);
    }
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t pick = i % 2 == 0 ? 0x5410u : 0x7632u;
        const uint32_t b0 = __byte_perm(word_of(tile.value[s][0], i / 2), word_of(tile.value[s][1], i / 2), pick);
        const uint32_t b1 = __byte_perm(word_of(tile.value[s][2], i / 2), word_of(tile.value[s][3], i / 2), pick);
        output[s][i][0] *= keep;
        output[s][i][1] *= keep;
        multiply_add<T>(output[s][i], weights[0], weights[1], b0, b1);
      }
    }
  }
};

// The queries of a block's heads in shared memory, rows of 64 kSlabs elements and 64 bytes more (no bank conflicts).
template <class T, int kSlabs>
struct Queries {
  static constexpr int kOctets = 8 * kSlabs, kPitch = kOctets + 4;
  uint4 octets[kAttendHeads * kPitch];

  __device__ __forceinline__ void load(const AttendArguments& a, const Share& share) {
    const T* from = static_cast<const T*>(a.query) + share.sequence * a.query_stride + share.first_head * a.head_size;
    for (int i = threadIdx.x; i < kAttendHeads * kOctets; i += 32 * kWarps) {
      const int head = i / kOctets, column = i % kOctets * kOctet;
      const bool inside = head < share.heads && column < a.head_size;
      octets[head * kPitch + i % kOctets] =
          inside ? *reinterpret_cast<const uint4*>(from + head * a.head_size + column) : uint4{};
    }
  }
};

template <class T, int kSlabs>
__device__ __forceinline__ void keep_results(const Running<T, kSlabs>& running, int size,
                                             const WarpResults<kWarps>& results) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  float sum = running.sum;
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  if (c == 0) results.set(warp, g, running.maximum, sum);
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int column = 64 * s + 16 * c + i;
      if (column < size) results.output(warp, g)[column] = running.output[s][i % 8][i / 8];
    }
  }
}

template <class T, int kSlabs>
__global__ void __launch_bounds__(32 * kWarps, kSlabs <= 2 ? 4 : 1)
    attend_kernel(AttendArguments a, AttendShape shape) {
  extern __shared__ float shared[];
  __shared__ Queries<T, kSlabs> queries;
  fetch_ahead<T>(a, shape);
  begin_kernel();
  const Share share = share_of(a, shape, kTile);
  const auto* keys = static_cast<const uint16_t*>(a.key_cache) + share.cache_offset;
  const auto* values = static_cast<const uint16_t*>(a.value_cache) + share.cache_offset;
  Running<T, kSlabs> running;
  const float scale = a.scale * 1.44269504f;  // powers of two from here on
  const int size = static_cast<int>(a.head_size), lane = threadIdx.x % 32;
  // While the products with one tile's values run, the next tile's keys are on their way.
  Tile<kSlabs> tile;
  int index = share.begin + threadIdx.x / 32;
  if (index < share.end) tile.load_keys(keys + int64_t{kTile} * index * size, share.length - kTile * index, size);
  queries.load(a, share);
  __syncthreads();
  const uint4* query = queries.octets + lane / 4 * queries.kPitch + lane % 4;
  for (; index < share.end; index += kWarps) {
    const int left = share.length - kTile * index, next = index + kWarps;
    tile.load_values(values + int64_t{kTile} * index * size, left, size);
    running.add_keys(tile, query, left, scale);
    if (next < share.end) tile.load_keys(keys + int64_t{kTile} * next * size, share.length - kTile * next, size);
    running.add_values(tile);
  }
  // The warps' partial results meet in shared memory.
  const WarpResults<kWarps> results(shared, a.head_size);
  keep_results(running, size, results);
  __syncthreads();
  finish_block<T>(a, shape, share, results);
}

// fp32: a warp takes a key at a time, a lane the columns lane + 32 i.
template <int kColumns>
__global__ void __launch_bounds__(32 * kWarps) attend_fp32_kernel(AttendArguments a, AttendShape shape) {
  extern __shared__ float shared[];
  fetch_ahead<float>(a, shape);
  begin_kernel();
  const Share share = share_of(a, shape, 1);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float query[kAttendHeads][kColumns], output[kAttendHeads][kColumns] = {};
  float maximum[kAttendHeads], sum[kAttendHeads] = {};
  const float* from =
      static_cast<const float*>(a.query) + share.sequence * a.query_stride + share.first_head * a.head_size;
#pragma unroll
  for (int h = 0; h < kAttendHeads; ++h) {
    maximum[h] = -INFINITY;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = lane + 32 * i;
      query[h][i] = h < share.heads && column < a.head_size ? from[h * a.head_size + column] : 0.0f;
    }
  }
  // Each warp takes every kWarps-th position: scores, running maximum, weighted sum of the values.
  const float scale = a.scale * 1.44269504f;
  for (int index = share.begin + warp; index < share.end; index += kWarps) {
    const float* key = static_cast<const float*>(a.key_cache) + share.cache_offset + int64_t{index} * a.head_size;
    const float* value = static_cast<const float*>(a.value_cache) + share.cache_offset + int64_t{index} * a.head_size;
    float k[kColumns], v[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const bool inside = lane + 32 * i < a.head_size;
      k[i] = inside ? key[lane + 32 * i] : 0.0f;
      v[i] = inside ? value[lane + 32 * i] : 0.0f;
    }
#pragma unroll
    for (int h = 0; h < kAttendHeads; ++h) {
      if (h >= share.heads) break;
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) score = fmaf(query[h][i], k[i], score);
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) score += __shfl_xor_sync(0xFFFFFFFFu, score, offset);
      score *= scale;
      const float highest = fmaxf(maximum[h], score), base = highest == -INFINITY ? 0.0f : highest;
      const float keep = exp2f(maximum[h] - base), weight = exp2f(score - base);
      maximum[h] = highest;
      sum[h] = fmaf(sum[h], keep, weight);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) output[h][i] = fmaf(output[h][i], keep, weight * v[i]);
    }
  }
  const WarpResults<kWarps> results(shared, a.head_size);
#pragma unroll
  for (int h = 0; h < kAttendHeads; ++h) {
    if (lane == 0) results.set(warp, h, maximum[h], sum[h]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (lane + 32 * i < a.head_size) results.output(warp, h)[lane + 32 * i] = output[h][i];
    }
  }
  __syncthreads();
  finish_block<float>(a, shape, share, results);
}

void launch_split(void (*kernel)(AttendArguments, AttendShape), const AttendArguments& a, const AttendShape& shape,
                  void* stream) {
  const dim3 grid(static_cast<unsigned>(shape.splits), static_cast<unsigned>(a.kv_heads * shape.parts),
                  static_cast<unsigned>(a.batch));
  launch_cluster("attend_cached", kernel, grid, 32 * kWarps, shape.clustered ? grid.x : 1,
                 WarpResults<kWarps>::bytes(a.head_size), stream, a, shape);
}

template <class T>
void launch_tiles(const AttendArguments& a, const AttendShape& shape, void* stream) {
  switch ((a.head_size + 63) / 64) {
    case 1: return launch_split(attend_kernel<T, 1>, a, shape, stream);
    case 2: return launch_split(attend_kernel<T, 2>, a, shape, stream);
    case 3: return launch_split(attend_kernel<T, 3>, a, shape, stream);
    default: return launch_split(attend_kernel<T, 4>, a, shape, stream);
  }
}

void launch_fp32(const AttendArguments& a, const AttendShape& shape, void* stream) {
  switch ((a.head_size + 31) / 32) {
    case 1:
    case 2: return launch_split(attend_fp32_kernel<2>, a, shape, stream);
    case 3:
    case 4: return launch_split(attend_fp32_kernel<4>, a, shape, stream);
    default: return launch_split(attend_fp32_kernel<8>, a, shape, stream);
  }
}

}  // namespace

int64_t attend_scratch(const AttendArguments& a) {
  const AttendShape shape = attend_shape(a);
  return shape.splits == 1 || shape.clustered ? 0 : a.batch * a.heads * shape.splits * (a.head_size + 2);
}

void attend_cached(const AttendArguments& a, void* stream) {
  if (a.batch == 0 || a.heads == 0) return;
  const AttendShape shape = attend_shape(a);
  switch (a.element) {
    case Element::kFloat32: launch_fp32(a, shape, stream); break;
    case Element::kBFloat16: launch_tiles<__nv_bfloat16>(a, shape, stream); break;
    case Element::kFloat16: launch_tiles<__half>(a, shape, stream); break;
  }
  if (shape.splits > 1 && !shape.clustered) {
    dispatch(a.element, [&](auto type) {
      launch("attend_cached", combine_kernel<decltype(type)>, static_cast<unsigned>(a.batch * a.heads), kCombineThreads,
             0, stream, a, shape, a.element == Element::kFloat32 ? 1 : kTile);
    });
  }
}

}  // namespace faultline::model::ops::cuda
