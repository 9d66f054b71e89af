// What all kernels share: element types, loads and stores of eight elements (one or two 16-byte accesses where the
// memory allows it), sums over a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "model/cuda/kernels.h"
#include "model/cuda/launch.cuh"

namespace faultline::model::ops::cuda {

template <class Function>
void dispatch(Element element, Function&& function) {
  switch (element) {
    case Element::kFloat32: return function(float{});
    case Element::kBFloat16: return function(__nv_bfloat16{});
    case Element::kFloat16: return function(__half{});
  }
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

inline constexpr int kOctet = 8;  // elements that a thread handles at once

template <class T>
union Octet {
  uint4 words[kOctet * sizeof(T) / 16];
  T elements[kOctet];
  __device__ Octet() {}
};

// `aligned`: rows start at multiples of 16 bytes and hold a multiple of eight elements. Elements from `count` on are 0.
template <class T>
__device__ __forceinline__ void load_octet(const T* from, int64_t count, bool aligned, float (&values)[kOctet]) {
  Octet<T> octet;
  if (aligned) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof octet / 16); ++i)
      octet.words[i] = reinterpret_cast<const uint4*>(from)[i];
  } else {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) octet.elements[i] = i < count ? from[i] : from_float<T>(0.0f);
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) values[i] = to_float(octet.elements[i]);
}

template <class T>
__device__ __forceinline__ void store_octet(T* to, int64_t count, bool aligned, const float (&values)[kOctet]) {
  Octet<T> octet;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) octet.elements[i] = from_float<T>(values[i]);
  if (aligned) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof octet / 16); ++i) reinterpret_cast<uint4*>(to)[i] = octet.words[i];
  } else {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      if (i < count) to[i] = octet.elements[i];
    }
  }
}

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }
inline bool is_aligned(const void* pointer, int64_t stride) { return is_aligned(pointer) && stride % kOctet == 0; }

// The sum over the threads of a row (threadIdx.x), the same value and order in each. More than one warp in a row: one
// row in a block, `shared` of 32 floats, and all threads of the block come here.
__device__ __forceinline__ float row_sum(float value, float* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  if (blockDim.x == 32) return value;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  __syncthreads();
  return value;
}

// A row a warp where rows are short, else a row a block.
inline dim3 row_block(int64_t width) {
  const int64_t octets = (width + kOctet - 1) / kOctet;
  if (octets <= 64) return dim3(32, 4);
  return dim3(static_cast<unsigned>(octets >= 1024 ? 1024 : (octets + 31) / 32 * 32), 1);
}

inline unsigned blocks_of(int64_t units, int64_t per_block) {
  return static_cast<unsigned>((units + per_block - 1) / per_block);
}

}  // namespace faultline::model::ops::cuda
