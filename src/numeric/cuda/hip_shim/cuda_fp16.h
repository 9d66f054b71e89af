// The pair of halves that the kernels use, with HIP's own type.
#pragma once

#include <hip/hip_fp16.h>

__device__ inline uint32_t __hne2_mask(__half2 a, __half2 b) {
  return (__low2float(a) != __low2float(b) ? 0xFFFFu : 0u) | (__high2float(a) != __high2float(b) ? 0xFFFF0000u : 0u);
}
