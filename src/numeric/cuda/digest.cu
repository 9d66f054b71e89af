// Digest and checksum on a GPU. A block hashes every n-th tile: a thread keeps its sixteen keys in registers and runs
// Horner's rule with beta = alpha^n, so that the launch shape cancels out; blocks' sums meet in two 64-bit words, since
// a sum of residues would overflow one.
#include "numeric/cuda/evidence.cuh"
#include "numeric/digest.h"

namespace faultline::numeric::cuda {
namespace {

constexpr int kLoads = 4;  // 16-byte loads of a thread in a tile: 256 * 4 * 16 bytes = 16 KiB
static_assert(kThreads * kLoads * 16 == kDigestTile);

__device__ __forceinline__ uint4 load_words(const uint8_t* bytes, int64_t offset, int64_t size, bool aligned) {
  if (aligned && offset + 16 <= size) return *reinterpret_cast<const uint4*>(bytes + offset);
  uint32_t word[4] = {};
  for (int k = 0; k < 16 && offset + k < size; ++k)
    word[k / 4] |= static_cast<uint32_t>(bytes[offset + k]) << (8 * (k % 4));
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// A residue below 2^61 summed over the block, without leaving 64 bits: its 32-bit halves are added apart.
__device__ __forceinline__ uint64_t block_sum61(uint64_t residue) {
  __shared__ uint64_t warps[2][kThreads / kWarpLanes];
  uint64_t lower = residue & 0xFFFFFFFFu, upper = residue >> 32;
  for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
    lower += __shfl_down_sync(kAllLanes, lower, offset);
    upper += __shfl_down_sync(kAllLanes, upper, offset);
  }
  if (threadIdx.x % kWarpLanes == 0)
    warps[0][threadIdx.x / kWarpLanes] = lower, warps[1][threadIdx.x / kWarpLanes] = upper;
  __syncthreads();
  lower = upper = 0;
  for (int w = 0; w < kThreads / kWarpLanes; ++w) lower += warps[0][w], upper += warps[1][w];
  return reduce61(fold61(lower) + multiply61(upper, uint64_t{1} << 32));
}

struct TileWords {
  uint4 load[kLoads];
};

__device__ __forceinline__ TileWords read_tile(const uint8_t* bytes, int64_t tile, int64_t size, bool aligned) {
  TileWords words;
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    words.load[u] = load_words(bytes, tile * kDigestTile + threadIdx.x * 16 + u * kThreads * 16, size, aligned);
  }
  return words;
}

// A whole tile of aligned memory: no questions asked.
__device__ __forceinline__ TileWords read_whole_tile(const uint8_t* bytes, int64_t tile) {
  const uint4* from = reinterpret_cast<const uint4*>(bytes + tile * kDigestTile) + threadIdx.x;
  TileWords words;
#pragma unroll
  for (int u = 0; u < kLoads; ++u) words.load[u] = __ldcs(from + u * kThreads);
  return words;
}

__device__ __forceinline__ uint64_t hash_tile(const TileWords& words, const uint32_t (&low)[4 * kLoads],
                                              const uint32_t (&high)[4 * kLoads]) {
  uint64_t a = 0, b = 0;
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const uint32_t word[4] = {words.load[u].x, words.load[u].y, words.load[u].z, words.load[u].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      a += static_cast<uint64_t>(low[4 * u + j]) * word[j];
      b += static_cast<uint64_t>(high[4 * u + j]) * word[j];
    }
  }
  return combine_halves(a, b);
}

__global__ void __launch_bounds__(kThreads, 3) digest_kernel(const uint8_t* bytes, int64_t size, int64_t tiles,
                                                             uint64_t beta, const uint32_t* keys, uint64_t* states) {
  bytes += blockIdx.y * size;
  uint64_t* result = states + blockIdx.y * kDigestStateWords;
  uint64_t* state = result + 1;
  uint32_t low[4 * kLoads], high[4 * kLoads];
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const uint4 l = reinterpret_cast<const uint4*>(keys)[u * kThreads + threadIdx.x],
                h = reinterpret_cast<const uint4*>(keys + kDigestWords)[u * kThreads + threadIdx.x];
    low[4 * u] = l.x, low[4 * u + 1] = l.y, low[4 * u + 2] = l.z, low[4 * u + 3] = l.w;
    high[4 * u] = h.x, high[4 * u + 1] = h.y, high[4 * u + 2] = h.z, high[4 * u + 3] = h.w;
  }
  const bool aligned = (reinterpret_cast<uintptr_t>(bytes) & 15u) == 0;
  uint64_t sum = 0;
  // From the block's last tile down, so that Horner's powers count up from its first. The next tile is always under
  // way.
  int64_t tile = tiles > blockIdx.x ? blockIdx.x + (tiles - 1 - blockIdx.x) / gridDim.x * gridDim.x : -1;
  if (tile >= 0 && (tile == tiles - 1 || !aligned)) {
    sum = hash_tile(read_tile(bytes, tile, size, aligned), low, high);
    tile -= gridDim.x;
  }
  if (aligned && tile >= 0) {
    TileWords next = read_whole_tile(bytes, tile);
#pragma unroll 1
    for (; tile >= 0; tile -= gridDim.x) {
      const TileWords words = next;
      if (tile >= gridDim.x) next = read_whole_tile(bytes, tile - gridDim.x);
      sum = fold61(multiply61(fold61(sum), beta) + hash_tile(words, low, high));
    }
  }
#pragma unroll 1
  for (; tile >= 0; tile -= gridDim.x)
    sum = fold61(multiply61(fold61(sum), beta) + hash_tile(read_tile(bytes, tile, size, false), low, high));
  const uint64_t total = block_sum61(reduce61(sum));
  if (threadIdx.x == 0) {
    const uint64_t part = reduce61(multiply61(total, power61(kDigestAlpha, blockIdx.x)));
    atomicAdd(reinterpret_cast<unsigned long long*>(state), static_cast<unsigned long long>(part & 0xFFFFFFFFu));
    atomicAdd(reinterpret_cast<unsigned long long*>(state + 1), static_cast<unsigned long long>(part >> 32));
  }
  if (!is_last_block(reinterpret_cast<uint32_t*>(state + 2)) || threadIdx.x != 0) return;
  __threadfence();
  const uint64_t all = fold61(__ldcg(state)) + multiply61(fold61(__ldcg(state + 1)), uint64_t{1} << 32);
  *result = finish_digest(all, static_cast<uint64_t>(tiles), static_cast<uint64_t>(size));
  state[0] = state[1] = 0;  // ready for the next digest, as the ticket is
}

template <class Integer>
__device__ __forceinline__ int64_t add_words(uint4 words) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  int64_t total = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if constexpr (sizeof(Integer) == 1) {
      for (int byte = 0; byte < 4; ++byte) total += (word[k] >> (8 * byte)) & 0xFFu;
    } else if constexpr (sizeof(Integer) == 2) {
      total += static_cast<int16_t>(word[k] & 0xFFFFu);
      total += static_cast<int16_t>(word[k] >> 16);
    } else if constexpr (sizeof(Integer) == 4) {
      total += static_cast<int32_t>(word[k]);
    }
  }
  if constexpr (sizeof(Integer) == 8) {
    total = static_cast<int64_t>((static_cast<uint64_t>(word[1]) << 32) | word[0]) +
            static_cast<int64_t>((static_cast<uint64_t>(word[3]) << 32) | word[2]);
  }
  return total;
}

template <class Integer>
__global__ void __launch_bounds__(kThreads) checksum_kernel(const Integer* data, int64_t elements, uint64_t* result) {
  constexpr int kPerLoad = 16 / sizeof(Integer);
  const bool aligned = (reinterpret_cast<uintptr_t>(data) & 15u) == 0;
  const int64_t loads = aligned ? elements / kPerLoad : 0, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  int64_t total = 0;
#pragma unroll 4
  for (int64_t i = thread; i < loads; i += stride) total += add_words<Integer>(reinterpret_cast<const uint4*>(data)[i]);
  for (int64_t i = loads * kPerLoad + thread; i < elements; i += stride) total += static_cast<int64_t>(data[i]);
  for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) total += __shfl_down_sync(kAllLanes, total, offset);
  __shared__ int64_t warps[kThreads / kWarpLanes];
  if (threadIdx.x % kWarpLanes == 0) warps[threadIdx.x / kWarpLanes] = total;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / kWarpLanes; ++w) total += warps[w];
  atomicAdd(reinterpret_cast<unsigned long long*>(result), static_cast<unsigned long long>(total));
}

template <class Integer>
void launch_checksum(const void* data, int64_t elements, uint64_t* result, cudaStream_t stream) {
  const int64_t wanted = (elements + kTile - 1) / kTile;
  const unsigned blocks = static_cast<unsigned>(wanted < 1 ? 1 : wanted < kMaxSegments ? wanted : kMaxSegments);
  checksum_kernel<Integer><<<blocks, kThreads, 0, stream>>>(static_cast<const Integer*>(data), elements, result);
}

}  // namespace

void digest(const void* bytes, int64_t size, int64_t pieces, const uint32_t* keys, uint64_t* state, void* stream) {
  constexpr int64_t kMostBlocks = 396;  // three an SM of an H200: one wave
  const int64_t tiles = (size + kDigestTile - 1) / kDigestTile;
  const int64_t blocks = tiles < 1 ? 1 : tiles < kMostBlocks ? tiles : kMostBlocks;
  const uint64_t beta = power61(kDigestAlpha, static_cast<uint64_t>(blocks));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(pieces));
  digest_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const uint8_t*>(bytes), size,
                                                                          tiles, beta, keys, state);
  check_launch("digest");
}

void checksum(const void* data, int element_size, int64_t elements, uint64_t* result, void* stream) {
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  switch (element_size) {
    case 1: launch_checksum<uint8_t>(data, elements, result, cuda_stream); break;
    case 2: launch_checksum<int16_t>(data, elements, result, cuda_stream); break;
    case 4: launch_checksum<int32_t>(data, elements, result, cuda_stream); break;
    default: launch_checksum<int64_t>(data, elements, result, cuda_stream); break;
  }
  check_launch("checksum");
}

}  // namespace faultline::numeric::cuda
