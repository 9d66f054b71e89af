// The tensor cores' m16n8k16 product for eight rows: D (8 x 8, fp32) += A (8 x 16) B (16 x 8). The instruction has 16
// rows; the lower eight are zeros here and their results are dropped.
//
// Note [Fragments]
// Lane 4 g + c holds, of A, row g and of B, column g: two pairs of the sum's index k, and of D row g, columns 2 c and
// 2 c + 1. Which k a pair stands for is free as long as A and B agree. So where both operands lie in memory with k
// running fastest, a lane loads 16 bytes at k = 32 j + 8 c of row g of each and feeds words x, y to one product and z,
// w to the next: full-width loads, no shared memory, no shuffles.
#pragma once

#include "model/cuda/element.cuh"

namespace faultline::model::ops::cuda {

template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[2], uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1);

#define FL_MULTIPLY_ADD(T, name)                                                                                      \
  template <>                                                                                                         \
  __device__ __forceinline__ void multiply_add<T>(float(&d)[2], uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1) { \
    asm("{ .reg .f32 low0, low1; mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                \
        ".f32 {%0, %1, low0, low1}, {%2, %3, %4, %3}, {%5, %6}, {%0, %1, %7, %7}; }"                                  \
        : "+f"(d[0]), "+f"(d[1])                                                                                      \
        : "r"(a0), "r"(0), "r"(a1), "r"(b0), "r"(b1), "f"(0.0f));                                                     \
  }
FL_MULTIPLY_ADD(__nv_bfloat16, "bf16")
FL_MULTIPLY_ADD(__half, "f16")
#undef FL_MULTIPLY_ADD

__device__ __forceinline__ uint32_t pack(__nv_bfloat16 low, __nv_bfloat16 high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(high)) << 16 | __bfloat16_as_ushort(low);
}
__device__ __forceinline__ uint32_t pack(__half low, __half high) {
  return static_cast<uint32_t>(__half_as_ushort(high)) << 16 | __half_as_ushort(low);
}

// Read once: keeps the first-level cache for what is read again.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

}  // namespace faultline::model::ops::cuda
