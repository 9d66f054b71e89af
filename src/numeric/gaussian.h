// Normal deviates without a transcendental function: a segmented inverse CDF, one word per deviate. The sign is the
// word's top bit, the magnitude f picks one of sixteen segments in its octave, and z = fma(f, slope, base). Bits are equal
// on every device. 32-bit words reach 6.2 sigma; 16-bit words, enough for 16-bit tensors, end at 4.17 sigma.
#pragma once

#include "base/host_device.h"

namespace faultline {

struct Segment {
  float slope;
  float base;
};

inline constexpr int kSegments16 = 16 * 16;
inline constexpr int kSegments32 = 31 * 16 + 1;

#if !defined(__CUDA_ARCH__)
inline constexpr Segment kGaussian16[kSegments16] = {
#define FL_GAUSSIAN_16
#include "numeric/gaussian_table.inc"
#undef FL_GAUSSIAN_16
};
inline constexpr Segment kGaussian32[kSegments32] = {
#define FL_GAUSSIAN_32
#include "numeric/gaussian_table.inc"
#undef FL_GAUSSIAN_32
};
#endif

FL_HD float segment_value(float magnitude, const Segment* table) {
  const int32_t index = static_cast<int32_t>(float_bits(magnitude) >> 19) - (127 << 4);
  return fused_multiply_add(magnitude, table[index].slope, table[index].base);
}

// `word` holds 16 random bits.
FL_HD float gaussian16(uint32_t word, const Segment* table) {
  const float magnitude = static_cast<float>(static_cast<int32_t>(((word & 0x7FFFu) << 1) | 1u));
  return bits_float(float_bits(segment_value(magnitude, table)) ^ ((word << 16) & 0x80000000u));
}

FL_HD float gaussian32(uint32_t word, const Segment* table) {
  const float magnitude = static_cast<float>(static_cast<int32_t>((word & 0x7FFFFFFFu) | 1u));
  return bits_float(float_bits(segment_value(magnitude, table)) ^ (word & 0x80000000u));
}

}  // namespace faultline
