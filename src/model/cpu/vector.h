// One vector register of fp32 of the instruction set that this file is compiled for, and the three storage types of a
// model as loads (widening) and stores (one rounding to nearest even). Everything is inlined into the namespace of the
// instruction set, and kernels use nothing of the standard library: a shared inline function compiled with wider
// instructions could be the copy that the linker keeps for all.
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define FL_INLINE inline __attribute__((always_inline))

namespace faultline::model::ops::cpu::FAULTLINE_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif
typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

FL_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
FL_INLINE int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

FL_INLINE Vector broadcast(float value) { return value - Vector{}; }
FL_INLINE Words words(Vector v) { return reinterpret_cast<Words>(v); }
FL_INLINE Vector floats(Words w) { return reinterpret_cast<Vector>(w); }
FL_INLINE Vector larger(Vector a, Vector b) { return b > a ? b : a; }

FL_INLINE Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

FL_INLINE float add_lanes(Vector v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(__aarch64__)
  return vaddvq_f32((float32x4_t)v);
#else
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
#endif
}

// The sums of four vectors' lanes: cheaper together, because shuffles are shared.
typedef float Four __attribute__((vector_size(16)));
FL_INLINE Four add_lanes(const Vector (&v)[4]) {
#if defined(__AVX512F__)
  const auto pair = [](Vector a, Vector b) {
    return _mm512_castps_pd(_mm512_unpacklo_ps((__m512)a, (__m512)b) + _mm512_unpackhi_ps((__m512)a, (__m512)b));
  };
  const __m512d low = pair(v[0], v[1]), high = pair(v[2], v[3]);
  const __m512 sums = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high)) + _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
  const __m256 half = _mm512_castps512_ps256(sums) + _mm512_extractf32x8_ps(sums, 1);
  return (Four)(_mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
#elif defined(__AVX2__)
  const __m256 sums =
      _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[0], (__m256)v[1]), _mm256_hadd_ps((__m256)v[2], (__m256)v[3]));
  return (Four)(_mm256_castps256_ps128(sums) + _mm256_extractf128_ps(sums, 1));
#elif defined(__aarch64__)
  const auto pair = [](Vector a, Vector b) { return vpaddq_f32((float32x4_t)a, (float32x4_t)b); };
  return (Four)vpaddq_f32(pair(v[0], v[1]), pair(v[2], v[3]));
#else
  return Four{add_lanes(v[0]), add_lanes(v[1]), add_lanes(v[2]), add_lanes(v[3])};
#endif
}

FL_INLINE float largest_lane(Vector v) {
  float largest = v[0];
  for (int i = 1; i < kLanes; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

template <class Bits>
FL_INLINE Bits load_bits(const void* from) {
  Bits bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return bits;
}

struct Float32 {
  using Storage = float;
  FL_INLINE static Vector load(const Storage* from) { return load_bits<Vector>(from); }
  FL_INLINE static void store(Storage* to, Vector v) { __builtin_memcpy(to, &v, sizeof v); }
};

struct BFloat16 {
  using Storage = uint16_t;
  FL_INLINE static Vector load(const Storage* from) {
#if defined(__aarch64__)
    return (Vector)vshll_n_u16(vld1_u16(from), 16);
#else
    return floats(__builtin_convertvector(load_bits<Halves>(from), Words) << 16);
#endif
  }
  FL_INLINE static void store(Storage* to, Vector v) {
    const Words bits = words(v);
    const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const Words nan = Words{} + 0x7FC0u;
    const Halves halves = __builtin_convertvector((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded, Halves);
    __builtin_memcpy(to, &halves, sizeof halves);
  }
};

struct Float16 {
  using Storage = uint16_t;
#if defined(__AVX512F__)
  FL_INLINE static Vector load(const Storage* from) { return (Vector)_mm512_cvtph_ps(load_bits<__m256i>(from)); }
  FL_INLINE static void store(Storage* to, Vector v) {
    const __m256i halves = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __builtin_memcpy(to, &halves, sizeof halves);
  }
#elif defined(__AVX2__)
  FL_INLINE static Vector load(const Storage* from) { return (Vector)_mm256_cvtph_ps(load_bits<__m128i>(from)); }
  FL_INLINE static void store(Storage* to, Vector v) {
    const __m128i halves = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __builtin_memcpy(to, &halves, sizeof halves);
  }
#else
  FL_INLINE static Vector load(const Storage* from) {
    const Words bits = __builtin_convertvector(load_bits<Halves>(from), Words);
    const Words sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7FFFu) << 13;
    const Words finite = words(floats(magnitude) * 0x1p112f);  // exact, subnormals included
    return floats(sign | (magnitude >= (31u << 23) ? magnitude | 0x7F800000u : finite));
  }
  FL_INLINE static void store(Storage* to, Vector v) {
    const Words bits = words(v), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    // A subnormal half is a multiple of 2^-24: adding 0.5 lets the fp32 adder do the rounding.
    const Words subnormal = words(floats(magnitude) + 0.5f) - 0x3F000000u;
    const Words normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    Words half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x47800000u ? Words{} + 0x7C00u : half;
    half = magnitude > 0x7F800000u ? Words{} + 0x7E00u : half;
    const Halves halves = __builtin_convertvector(sign | half, Halves);
    __builtin_memcpy(to, &halves, sizeof halves);
  }
#endif
};

// The first `count` elements, which may be fewer than a vector holds: the other lanes are zero, and not written.
template <class Type>
FL_INLINE Vector load(const typename Type::Storage* from, int64_t count) {
  if (count >= kLanes) return Type::load(from);
  typename Type::Storage padded[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = from[i];
  return Type::load(padded);
}

template <class Type>
FL_INLINE void store(typename Type::Storage* to, Vector v, int64_t count) {
  if (count >= kLanes) return Type::store(to, v);
  typename Type::Storage padded[kLanes];
  Type::store(padded, v);
  for (int64_t i = 0; i < count; ++i) to[i] = padded[i];
}

// Four elements at once, past the detour over memory.
template <class Type>
FL_INLINE void store_four(typename Type::Storage* to, Four v) {
  if constexpr (sizeof(typename Type::Storage) == sizeof(float)) {
    __builtin_memcpy(to, &v, sizeof v);
  } else {
    Vector wide = {};
    for (int i = 0; i < 4; ++i) wide[i] = v[i];
    store<Type>(to, wide, 4);
  }
}
template <>
FL_INLINE void store_four<BFloat16>(uint16_t* to, Four v) {
  typedef uint32_t FourWords __attribute__((vector_size(16)));
  typedef uint16_t FourHalves __attribute__((vector_size(8)));
  const auto bits = reinterpret_cast<FourWords>(v);
  const FourWords rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16, nan = FourWords{} + 0x7FC0u;
  const auto halves = __builtin_convertvector((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded, FourHalves);
  __builtin_memcpy(to, &halves, sizeof halves);
}
FL_INLINE Four first_four(Vector v) { return Four{v[0], v[1], v[2], v[3]}; }

// e^x, about 1 ulp: 2^n times a polynomial (Cephes' expf) in the rest, |rest| <= ln 2 / 2. NaN stays NaN; beyond the
// limits the result is 0 or infinity.
FL_INLINE Vector exponential(Vector x) {
  const Vector lowest = broadcast(-104.0f), highest = broadcast(89.0f), shifter = broadcast(0x1.8p23f);
  x = x < lowest ? lowest : x;
  x = x > highest ? highest : x;
  const Vector shifted = multiply_add(x, broadcast(0x1.715476p0f), shifter);  // n in the low bits
  const Vector n = shifted - shifter;
  const Vector rest = multiply_add(n, broadcast(2.12194440e-4f), multiply_add(n, broadcast(-0.693359375f), x));
  Vector p = broadcast(1.9875691500e-4f);
  p = multiply_add(p, rest, broadcast(1.3981999507e-3f));
  p = multiply_add(p, rest, broadcast(8.3334519073e-3f));
  p = multiply_add(p, rest, broadcast(4.1665795894e-2f));
  p = multiply_add(p, rest, broadcast(1.6666665459e-1f));
  p = multiply_add(p, rest, broadcast(5.0000001201e-1f));
  p = multiply_add(p, rest * rest, rest) + 1.0f;
  const Words twice = words(shifted) - words(shifter) + 512u;  // n + 512, positive; in two factors: 2^n may not exist
  const Words half = twice >> 1, other = twice - half;
  return p * floats((half - 256u + 127u) << 23) * floats((other - 256u + 127u) << 23);
}

#if defined(__AVX512F__)
// Rows become columns.
FL_INLINE void transpose(__m512 (&row)[16]) {
  __m512 pair[16], quad[16];
  for (int i = 0; i < 16; i += 2) {
    pair[i] = _mm512_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm512_unpackhi_ps(row[i], row[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int k = 0; k < 2; ++k) {
      const __m512d a = _mm512_castps_pd(pair[i + k]), b = _mm512_castps_pd(pair[i + k + 2]);
      quad[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      quad[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  for (int k = 0; k < 4; ++k) {  // quad[4 g + k]: columns k, k + 4, k + 8, k + 12 of rows 4 g ... 4 g + 3
    const __m512 a = _mm512_shuffle_f32x4(quad[k], quad[4 + k], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(quad[8 + k], quad[12 + k], 0x88);
    const __m512 c = _mm512_shuffle_f32x4(quad[k], quad[4 + k], 0xDD);
    const __m512 d = _mm512_shuffle_f32x4(quad[8 + k], quad[12 + k], 0xDD);
    row[k] = _mm512_shuffle_f32x4(a, b, 0x88);
    row[k + 8] = _mm512_shuffle_f32x4(a, b, 0xDD);
    row[k + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
    row[k + 12] = _mm512_shuffle_f32x4(c, d, 0xDD);
  }
}
#endif

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA
