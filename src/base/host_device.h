// Arithmetic that must give the same bits on a CPU and on a GPU is written once, in headers whose functions carry
// FL_HD. They are always inlined, so each instruction-set build of a kernel file gets its own copy, and they use only
// operations that IEEE 754 defines exactly: + - * / sqrt, explicit fused multiply-add, comparisons and integers. Host
// files that include them are compiled with -ffp-contract=off, device files with -fmad=false.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__) || defined(__HIP__)
#define FL_HD __host__ __device__ __forceinline__
#else
#define FL_HD inline __attribute__((always_inline))
#endif

namespace faultline {

FL_HD uint32_t float_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
#endif
}

FL_HD float bits_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
#endif
}

FL_HD uint64_t double_bits(double value) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint64_t>(__double_as_longlong(value));
#else
  uint64_t bits;
  __builtin_memcpy(&bits, &value, 8);
  return bits;
#endif
}

FL_HD double bits_double(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(static_cast<long long>(bits));
#else
  double value;
  __builtin_memcpy(&value, &bits, 8);
  return value;
#endif
}

FL_HD float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

FL_HD double fused_multiply_add(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

FL_HD double square_root(double value) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(value);
#else
  return __builtin_sqrt(value);
#endif
}

}  // namespace faultline
