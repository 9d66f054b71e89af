// How kernels follow each other. A decode step is hundreds of short kernels; waiting for one to drain before the next
// is set up costs as much as many of them take.
//
// Note [Overlap]
// On devices that can (sm_90), a kernel of ours is launched as the programmatic dependent of the one before it: its
// blocks may become resident while that one still runs. Every kernel therefore begins with begin_kernel() in all
// threads: it lets its own successor come, and waits until everything before it has finished and is visible. Nothing of
// device memory is read or written above that line (a prefetch into the second-level cache is neither: it cannot see
// old data, even where a fault has just rewritten a weight). A kernel of somebody else in between waits for all of
// ours, and ours for all of it, as usual. FAULTLINE_NO_OVERLAP=1 turns this off, to measure what it gives.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace faultline::model::ops::cuda {

__device__ __forceinline__ void begin_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks for `bytes` (a multiple of 16, so aligned) to be in the second-level cache soon; for one thread of a block.
__device__ __forceinline__ void prefetch(const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

inline int device_major() {  // of the compute capability
  static const int major = [] {
    int device = 0, value = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    return known ? value : 0;
  }();
  return major;
}

inline bool device_overlaps() {
  static const bool overlaps = device_major() >= 9 && std::getenv("FAULTLINE_NO_OVERLAP") == nullptr;
  return overlaps;
}

// cluster: so many neighbours in x form a cluster (1: none).
template <class... Formal, class... Actual>
void launch_cluster(const char* name, void (*kernel)(Formal...), dim3 grid, dim3 block, unsigned cluster,
                    std::size_t shared_bytes, void* stream, Actual... arguments) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (device_overlaps()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Formal>(arguments)...);
  if (error != cudaSuccess) throw RuntimeFailure(std::string(name) + ": " + cudaGetErrorString(error));
}

template <class... Formal, class... Actual>
void launch(const char* name, void (*kernel)(Formal...), dim3 grid, dim3 block, std::size_t shared_bytes, void* stream,
            Actual... arguments) {
  launch_cluster(name, kernel, grid, block, 1, shared_bytes, stream, arguments...);
}

}  // namespace faultline::model::ops::cuda
