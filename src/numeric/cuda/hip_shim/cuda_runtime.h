// CUDA's words in HIP's, for compiling the CUDA kernels with hipcc. The kernels think in groups of 32 neighbouring
// threads (lanes.cuh); here every exchange between lanes has that width, so on a processor whose wavefront has 64 lanes
// the two halves do not see each other. What these kernels use is here and nothing more.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>
#include <cstring>

#include "numeric/cuda/lanes.cuh"

#define __grid_constant__

using cudaError_t = hipError_t;
using cudaStream_t = hipStream_t;
using cudaStreamCaptureStatus = hipStreamCaptureStatus;
inline constexpr cudaError_t cudaSuccess = hipSuccess;
inline constexpr cudaStreamCaptureStatus cudaStreamCaptureStatusNone = hipStreamCaptureStatusNone;
inline constexpr auto cudaDevAttrComputeCapabilityMajor = hipDeviceAttributeComputeCapabilityMajor;

inline cudaError_t cudaGetLastError() { return hipGetLastError(); }
inline const char* cudaGetErrorString(cudaError_t error) { return hipGetErrorString(error); }
inline cudaError_t cudaGetDevice(int* device) { return hipGetDevice(device); }
// Asked to learn whether kernels may overlap, which takes compute capability 9 of NVIDIA's.
inline cudaError_t cudaDeviceGetAttribute(int* value, hipDeviceAttribute_t, int) { return *value = 0, hipSuccess; }
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return hipStreamIsCapturing(stream, status);
}
template <class Type>
cudaError_t cudaMalloc(Type** pointer, size_t bytes) {
  return hipMalloc(pointer, bytes);
}
inline cudaError_t cudaFree(void* pointer) { return hipFree(pointer); }
template <class Symbol>
cudaError_t cudaGetSymbolAddress(void** pointer, const Symbol& symbol) {
  return hipGetSymbolAddress(pointer, symbol);
}

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  hipLaunchKernelGGL(kernel, config->gridDim, config->blockDim, static_cast<uint32_t>(config->dynamicSmemBytes),
                     config->stream, Parameters(arguments)...);
  return hipGetLastError();
}

// --- lanes of a group ---
using faultline::numeric::cuda::kWarpLanes;

template <class Type>
__device__ __forceinline__ Type __shfl_xor_sync(uint32_t, Type value, int mask) {
  return __shfl_xor(value, mask, kWarpLanes);
}
template <class Type>
__device__ __forceinline__ Type __shfl_down_sync(uint32_t, Type value, unsigned by) {
  return __shfl_down(value, by, kWarpLanes);
}
template <class Type>
__device__ __forceinline__ Type __shfl_up_sync(uint32_t, Type value, unsigned by) {
  return __shfl_up(value, by, kWarpLanes);
}
__device__ __forceinline__ uint32_t __reduce_add_sync(uint32_t, uint32_t value) {
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) value += __shfl_xor(value, mask, kWarpLanes);
  return value;
}
__device__ __forceinline__ uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) value = max(value, __shfl_xor(value, mask, kWarpLanes));
  return value;
}
__device__ __forceinline__ bool __any_sync(uint32_t, bool value) {
  return __reduce_max_sync(0xFFFFFFFFu, value ? 1u : 0u) != 0;
}
__device__ __forceinline__ void __syncwarp() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

// --- memory: past the caches of one compute unit, and read once ---
template <class Type>
__device__ __forceinline__ Type __ldcg(const Type* pointer) {
  return *const_cast<const volatile Type*>(pointer);
}
__device__ __forceinline__ uint4 __ldcs(const uint4* pointer) { return *pointer; }

// --- integers, two in a word ---
__device__ __forceinline__ uint32_t __vmaxu2(uint32_t a, uint32_t b) {
  return max(a & 0xFFFFu, b & 0xFFFFu) | max(a >> 16, b >> 16) << 16;
}
