// x (M <= 8, K) times weight (N, K) transposed: bound by the weight's way through memory. For 16-bit types a block
// takes eight outputs, its warps the slabs of 32 inputs in turn; each lane keeps eight 16-byte loads in flight and the
// tensor cores do the sums (Note [Fragments]), so that a row's result does not depend on how many rows there are. Other
// types and odd shapes: a warp an output, in plain fp32.
#include "model/cuda/mma.cuh"

namespace faultline::ops::cuda {
namespace {

constexpr int kWarps = 8, kAhead = 4, kOutputs = 8;
constexpr unsigned kPrefetching = 528;  // the first blocks, which may come early: Note [Overlap]

// A lane's pointers and limits; slab j of the inputs is columns 32 j ... 32 j + 31.
template <class T, int kSplit>
struct Lane {
  const T* weight;
  const T* x;
  int columns;  // left of this lane's first
  bool has_row;

  __device__ __forceinline__ void load(int slab, uint4 (&w)[kAhead]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int column = (slab + i * kSplit) * 32;
      w[i] = column < columns ? load_once(weight + column) : uint4{};
    }
  }
  __device__ __forceinline__ void multiply(int slab, const uint4 (&w)[kAhead], float (&sums)[4][2]) const {
    uint4 v[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int column = (slab + i * kSplit) * 32;
      v[i] = has_row && column < columns ? *reinterpret_cast<const uint4*>(x + column) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {  // independent chains: a product takes some thirty cycles
      multiply_add<T>(sums[i % 2], v[i].x, v[i].y, w[i].x, w[i].y);
      multiply_add<T>(sums[2 + i % 2], v[i].z, v[i].w, w[i].z, w[i].w);
    }
  }
};

// kSplit warps share eight outputs, kGroups such groups make a block.
template <class T, int kSplit, int kGroups>
__global__ void __launch_bounds__(32 * kSplit * kGroups) tile_kernel(LinearArguments a) {
  __shared__ float shared[kGroups][kSplit][kFewRows][kOutputs];
  const int warp = threadIdx.x / 32 % kSplit, group = threadIdx.x / (32 * kSplit);
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kGroups + group) * kOutputs;
  const int64_t output = min(first + g, a.outputs - 1);
  const Lane<T, kSplit> lane{static_cast<const T*>(a.weight) + output * a.weight_stride + 8 * c,
                             static_cast<const T*>(a.x) + g * a.x_stride + 8 * c, static_cast<int>(a.inputs) - 8 * c,
                             g < a.rows};
  if (warp == 0 && c == 0 && blockIdx.x < kPrefetching)
    prefetch(lane.weight, min(static_cast<uint32_t>(a.inputs), 2u * kSplit * kAhead * 32) * sizeof(T));
  begin_kernel();
  const int slabs = static_cast<int>((a.inputs + 31) / 32);
  constexpr int kStep = kSplit * kAhead;
  float sums[4][2] = {};
  uint4 even[kAhead], odd[kAhead];
  lane.load(warp, even);
  for (int slab = warp; slab < slabs; slab += 2 * kStep) {
    lane.load(slab + kStep, odd);
    lane.multiply(slab, even, sums);
    lane.load(slab + 2 * kStep, even);
    lane.multiply(slab + kStep, odd, sums);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) shared[group][warp][g][2 * c + i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
  __syncthreads();
  for (int i = threadIdx.x; i < kGroups * kFewRows * kOutputs; i += 32 * kSplit * kGroups) {
    const int at = i / (kFewRows * kOutputs), row = i / kOutputs % kFewRows, column = i % kOutputs;
    const int64_t to = (static_cast<int64_t>(blockIdx.x) * kGroups + at) * kOutputs + column;
    if (row >= a.rows || to >= a.outputs) continue;
    float total = a.bias ? to_float(static_cast<const T*>(a.bias)[to]) : 0.0f;
#pragma unroll
    for (int w = 0; w < kSplit; ++w) total += shared[at][w][row][column];
    static_cast<T*>(a.out)[row * a.outputs + to] = from_float<T>(total);
  }
}

// Some fifteen warps for each of 132 multiprocessors, and six slabs for each warp, where the shape allows.
template <class T>
void launch_tiles(const LinearArguments& a, void* stream) {
  const int64_t groups = (a.outputs + kOutputs - 1) / kOutputs, slabs = (a.inputs + 31) / 32;
  const auto wants = [&](int64_t split) { return groups * split / 2 < 2000 && slabs >= 6 * split; };
  const auto start = [&](auto kernel, int64_t split, int64_t per_block) {
    launch("few_rows_linear", kernel, blocks_of(groups, per_block), static_cast<unsigned>(32 * split * per_block), 0,
           stream, a);
  };
  if (wants(16)) return start(tile_kernel<T, 16, 1>, 16, 1);
  if (wants(8)) return start(tile_kernel<T, 8, 1>, 8, 1);
  if (wants(4)) return start(tile_kernel<T, 4, 1>, 4, 1);
  if (wants(2)) return start(tile_kernel<T, 2, 2>, 2, 2);
  start(tile_kernel<T, 1, 4>, 1, 4);
}

template <class T>
__global__ void __launch_bounds__(32 * kWarps) plain_kernel(LinearArguments a, bool aligned) {
  begin_kernel();
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (output >= a.outputs) return;
  const T* weight = static_cast<const T*>(a.weight) + output * a.weight_stride;
  float sum[kFewRows] = {};
  for (int64_t column = lane * kOctet; column < a.inputs; column += 32 * kOctet) {
    float w[kOctet], v[kOctet];
    load_octet(weight + column, a.inputs - column, aligned, w);
#pragma unroll
    for (int row = 0; row < kFewRows; ++row) {
      if (row >= a.rows) break;
      load_octet(static_cast<const T*>(a.x) + row * a.x_stride + column, a.inputs - column, aligned, v);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) sum[row] = fmaf(w[i], v[i], sum[row]);
    }
  }
  const float bias = a.bias ? to_float(static_cast<const T*>(a.bias)[output]) : 0.0f;
#pragma unroll
  for (int row = 0; row < kFewRows; ++row) {
    if (row >= a.rows) break;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum[row] += __shfl_xor_sync(0xFFFFFFFFu, sum[row], offset);
    if (lane == 0) static_cast<T*>(a.out)[row * a.outputs + output] = from_float<T>(sum[row] + bias);
  }
}

}  // namespace

void few_rows_linear(const LinearArguments& a, void* stream) {
  if (a.rows == 0 || a.outputs == 0) return;
  const bool aligned = a.inputs % kOctet == 0 && is_aligned(a.x, a.rows == 1 ? 0 : a.x_stride) &&
                       is_aligned(a.weight, a.outputs == 1 ? 0 : a.weight_stride);
  dispatch(a.element, [&](auto type) {
    using T = decltype(type);
    if constexpr (sizeof(T) == 2) {
      if (aligned) {
        launch_tiles<T>(a, stream);
        return;
      }
    }
    launch("few_rows_linear", plain_kernel<T>, blocks_of(a.outputs, kWarps), 32 * kWarps, 0, stream, a, aligned);
  });
}

}  // namespace faultline::ops::cuda
