// Patterns on a GPU: one pass over the buffer; an element that differs is accounted with integer atomics, which a clean
// buffer never executes.
#include <cuda_runtime.h>

#include <string>

#include "base/error.h"
#include "numeric/cuda/kernels.h"

namespace faultline::numeric::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;
constexpr int64_t kMaxBlocks = 132 * 16;

unsigned blocks_of(int64_t elements) {
  const int64_t blocks = (elements + kThreads * kUnroll - 1) / (kThreads * kUnroll);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > kMaxBlocks ? kMaxBlocks : blocks);
}

void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw RuntimeFailure(std::string(kernel) + ": " + cudaGetErrorString(error));
}

template <class Type, PatternForm kForm>
__global__ void fill_kernel(const __grid_constant__ Pattern pattern, int64_t elements, typename Type::Bits* data) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride)
    data[i] = pattern_bits<Type, kForm>(pattern, static_cast<uint32_t>(i));
}

using Counter = unsigned long long;  // NOLINT(google-runtime-int): the type that CUDA's atomics take

__device__ void add(uint64_t* word, uint64_t value) {
  atomicAdd(reinterpret_cast<Counter*>(word), static_cast<Counter>(value));
}

__device__ void account(uint32_t poison, uint64_t index, uint32_t observed, uint32_t expected, uint32_t poison_mask,
                        PatternCheck* row) {
  const uint32_t difference = observed ^ expected;
  add(&row->count, 1);
  atomicMax(reinterpret_cast<Counter*>(&row->first_from_end), static_cast<Counter>(~index));
  atomicMax(reinterpret_cast<Counter*>(&row->last), static_cast<Counter>(index));
  atomicOr(reinterpret_cast<Counter*>(&row->changed_bits), static_cast<Counter>(difference));
  if (observed == 0) add(&row->zeros, 1);
  if (observed == (poison & poison_mask)) add(&row->poisoned, 1);
  const uint64_t slot = atomicAdd(reinterpret_cast<Counter*>(&row->samples), Counter{1});
  if (slot < PatternCheck::kSamples) {
    row->index[slot] = index;
    row->observed[slot] = observed;
  }
  for (uint32_t left = difference; left != 0; left &= left - 1) add(&row->histogram[__ffs(left) - 1], 1);
}

template <class Type, PatternForm kForm>
__global__ void check_kernel(const __grid_constant__ Pattern pattern, uint32_t poison, int64_t elements,
                             const typename Type::Bits* data, PatternCheck* row) {
  constexpr uint32_t kMask = Type::kWidth == 32 ? ~0u : 0xFFFFu;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
    const auto expected = pattern_bits<Type, kForm>(pattern, static_cast<uint32_t>(i));
    if (data[i] != expected) account(poison, static_cast<uint64_t>(i), data[i], expected, kMask, row);
  }
}

}  // namespace

void fill_pattern(const Pattern& pattern, int64_t elements, void* data, void* stream) {
  dispatch_pattern(pattern, [&]<class Type, PatternForm kForm>() {
    fill_kernel<Type, kForm><<<blocks_of(elements), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        pattern, elements, static_cast<typename Type::Bits*>(data));
  });
  check_launch("fill_pattern");
}

void check_pattern(const Pattern& pattern, uint32_t poison, int64_t elements, const void* data, PatternCheck* row,
                   void* stream) {
  dispatch_pattern(pattern, [&]<class Type, PatternForm kForm>() {
    check_kernel<Type, kForm><<<blocks_of(elements), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        pattern, poison, elements, static_cast<const typename Type::Bits*>(data), row);
  });
  check_launch("check_pattern");
}

}  // namespace faultline::numeric::cuda
