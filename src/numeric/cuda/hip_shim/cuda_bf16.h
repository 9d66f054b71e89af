// A pair of bf16 values in a word: HIP before 6 has none. Rounded to nearest, ties to even; a NaN stays one.
#pragma once

#include <cuda_runtime.h>

struct __nv_bfloat162 {
  uint32_t word;
};

__device__ inline uint32_t bfloat16_bits(float value) {
  const uint32_t bits = __float_as_uint(value);
  return value != value ? 0x7FFFu : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}
__device__ inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {bfloat16_bits(low) | bfloat16_bits(high) << 16};
}
__device__ inline uint32_t __hne2_mask(__nv_bfloat162 a, __nv_bfloat162 b) {
  const auto differ = [](uint32_t x, uint32_t y) { return __uint_as_float(x) != __uint_as_float(y); };
  return (differ(a.word << 16, b.word << 16) ? 0xFFFFu : 0u) |
         (differ(a.word & 0xFFFF0000u, b.word & 0xFFFF0000u) ? 0xFFFF0000u : 0u);
}
