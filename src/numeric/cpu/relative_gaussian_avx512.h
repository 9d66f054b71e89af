// relative_gaussian.h's column with AVX-512: eight blocks of random words, 64 positions of bf16 or 32 of fp32. A finite
// x that the noise moves is the only one whose y compares unequal, so that one comparison stands for every special
// case. Zeros and non-finite numbers are told from the result by one comparison of a vector and then counted apart.
#pragma once

// GCC 12 takes its own _mm512_undefined_*() for a mistake of ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "numeric/arithmetic.h"
#include "numeric/ledger.h"

namespace faultline::numeric::cpu {
namespace {

template <class Type>
constexpr bool kHasColumn = Type::kDtype == Dtype::kBFloat16 || Type::kDtype == Dtype::kFloat32;
template <class Type>
constexpr int kColumn = 8 * 128 / Type::kWidth;  // positions that are walked together
// Of 16 lanes: even and odd elements of bf16's first 32, of its last 32; fp32's first 16, its last 16.
template <class Type>
constexpr int kVectors = kColumn<Type> / 16;
using Vector = __m512;

// What Philox is given for a whole call; every 64-bit lane computes one block in its low half.
struct Counter {
  __m512i lane, high, call, step;
  __m512i low_keys[kPhiloxRounds], high_keys[kPhiloxRounds];
};

__m512i broadcast(uint32_t word) { return _mm512_set1_epi64(static_cast<int64_t>(word)); }

Counter make_counter(const Control& control, uint64_t key) {
  const PhiloxKeys keys = philox_keys(key);
  Counter counter;
  counter.lane = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // so that unpacking them in draw() restores the order
  counter.high = broadcast(counter_tag(control, kGaussianStream));
  counter.call = broadcast(control.call);
  counter.step = broadcast(control.step);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter.low_keys[round] = broadcast(keys.low[round]);
    counter.high_keys[round] = broadcast(keys.high[round]);
  }
  return counter;
}

// The words of eight consecutive blocks, in order: 16 in each result, for 32 elements of bf16, two a word, or 16 of
// fp32.
inline void draw(const Counter& counter, uint64_t block, __m512i (&words)[2]) {
  const __m512i first = broadcast(0xD2511F53u), second = broadcast(0xCD9E8D57u);
  __m512i c0 = _mm512_add_epi64(counter.lane, broadcast(static_cast<uint32_t>(block)));
  __m512i c1 = _mm512_or_si512(counter.high, broadcast(static_cast<uint32_t>(block >> 32)));
  __m512i c2 = counter.call, c3 = counter.step;
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m512i p0 = _mm512_mul_epu32(first, c0), p1 = _mm512_mul_epu32(second, c2);
    c0 = _mm512_ternarylogic_epi64(_mm512_shuffle_epi32(p1, _MM_PERM_DDBB), c1, counter.low_keys[round], 0x96);
    c2 = _mm512_ternarylogic_epi64(_mm512_shuffle_epi32(p0, _MM_PERM_DDBB), c3, counter.high_keys[round], 0x96);
    c1 = p1, c3 = p0;
  }
  const __m512i low = _mm512_mask_shuffle_epi32(c0, 0xAAAA, c1, _MM_PERM_CCAA);
  const __m512i high = _mm512_mask_shuffle_epi32(c2, 0xAAAA, c3, _MM_PERM_CCAA);
  words[0] = _mm512_unpacklo_epi64(low, high);
  words[1] = _mm512_unpackhi_epi64(low, high);
}

inline __m512 gather(__m256i index, const Segment* table) {
  return _mm512_castsi512_ps(_mm512_i32gather_epi64(index, table, sizeof(Segment)));
}

template <class Type>
inline __m512 deviates(__m512i odd, const Segment* table) {
  const __m512 value = _mm512_cvtepi32_ps(odd);
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i index =
      _mm512_and_si512(_mm512_srli_epi32(bits, 19), _mm512_set1_epi32(Type::kWidth == 16 ? 255 : 511));
  // A slope and its base are fetched together: half the loads of two gathers.
  const __m512 low = gather(_mm512_castsi512_si256(index), table);
  const __m512 high = gather(_mm512_extracti64x4_epi64(index, 1), table);
  const __m512i slopes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512 slope = _mm512_permutex2var_ps(low, slopes, high);
  const __m512 base = _mm512_permutex2var_ps(low, _mm512_or_si512(slopes, _mm512_set1_epi32(1)), high);
  const __m512i signed_base =
      _mm512_ternarylogic_epi32(_mm512_castps_si512(base), bits, _mm512_set1_epi32(INT32_MIN), 0x78);  // a ^ (b & c)
  return _mm512_fmadd_ps(value, slope, _mm512_castsi512_ps(signed_base));
}

// x (1 + g) rounded to bf16, as a float; x where the noise does not move it or it is not finite.
inline __m512 noisy(__m512 x, __m512 deviate) {
  const __m512 y = _mm512_fmadd_ps(deviate, x, x);
  const __mmask16 moved = _mm512_cmp_ps_mask(y, x, _CMP_NEQ_OQ);
  const __m512i bits = _mm512_castps_si512(y);
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), even);
  return _mm512_castsi512_ps(_mm512_mask_and_epi32(_mm512_castps_si512(x), moved, rounded, _mm512_set1_epi32(-65536)));
}

// The ledger's lanes of a column.
template <class Type>
struct ColumnLanes {
  static constexpr int kCount = kVectors<Type>;
  __m512 abs[kCount] = {}, squared_error[kCount] = {}, squared_value[kCount] = {}, max[kCount] = {};
};

template <class Type>
inline void add(ColumnLanes<Type>& lanes, int i, __m512 x, __m512 y) {
  const __m512 e = _mm512_sub_ps(y, x), size = _mm512_abs_ps(e);
  lanes.abs[i] = _mm512_add_ps(lanes.abs[i], size);
  lanes.squared_error[i] = _mm512_fmadd_ps(e, e, lanes.squared_error[i]);
  lanes.squared_value[i] = _mm512_fmadd_ps(x, x, lanes.squared_value[i]);
  lanes.max[i] = _mm512_max_ps(lanes.max[i], size);
}

struct Elements {  // 32 of them
  __m512 even, odd;
};
inline Elements elements_of(__m512i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-65536)))};
}

__attribute__((noinline)) void count_special(__m512i before, __m512i after, int64_t* counts) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF), exponent = _mm512_set1_epi16(0x7F80);
  const __mmask32 nonzero = _mm512_test_epi16_mask(before, magnitude), zero = _mm512_testn_epi16_mask(after, magnitude);
  counts[kCountNonzero] += _mm_popcnt_u32(nonzero);
  counts[kCountZeroed] += _mm_popcnt_u32(nonzero & zero);
  counts[kCountNonfinite] += _mm_popcnt_u32(_mm512_cmpeq_epi16_mask(_mm512_and_si512(after, exponent), exponent));
}

inline __m512 zero_unless_finite(__m512 value, __m512 y) {
  return _mm512_mask_mov_ps(value, _mm512_fpclass_ps_mask(y, 0x99), _mm512_setzero_ps());  // NaNs and infinities
}

inline void account(__m512i before, __m512i after, Elements x, Elements y, int half, ColumnLanes<BFloat16>& lanes,
                    int64_t* counts) {
  counts[kCountChanged] += _mm_popcnt_u32(_mm512_cmpneq_epi16_mask(before, after));
  const __m512i magnitude = _mm512_and_si512(after, _mm512_set1_epi16(0x7FFF));
  const __mmask32 special = _mm512_cmpge_epu16_mask(_mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)),
                                                    _mm512_set1_epi16(0x7F7F));  // zero or not finite
  if (__builtin_expect(special != 0, 0)) {
    count_special(before, after, counts);
    x = {zero_unless_finite(x.even, y.even), zero_unless_finite(x.odd, y.odd)};
    y = {zero_unless_finite(y.even, y.even), zero_unless_finite(y.odd, y.odd)};
  } else {
    counts[kCountNonzero] += 32;
  }
  add(lanes, 2 * half, x.even, y.even);
  add(lanes, 2 * half + 1, x.odd, y.odd);
}

template <bool kCounted>
inline void fault_column(const Counter& counter, const Segment* table, uint64_t block, uint16_t* values,
                         ColumnLanes<BFloat16>& lanes, int64_t* counts) {
  __m512i words[2];
  draw(counter, block, words);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512i before = _mm512_loadu_si512(values + 32 * half);
    const __m512i odd_words = _mm512_or_si512(words[half], _mm512_set1_epi32(0x00010001));
    const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(odd_words, 16), 16);
    const __m512i odd = _mm512_srai_epi32(odd_words, 16);
    const Elements x = elements_of(before);
    const Elements y = {noisy(x.even, deviates<BFloat16>(even, table)), noisy(x.odd, deviates<BFloat16>(odd, table))};
    const __m512i after =
        _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(y.even), 16), _mm512_castps_si512(y.odd));
    _mm512_storeu_si512(values + 32 * half, after);
    if constexpr (kCounted) account(before, after, x, y, half, lanes, counts);
  }
}

// fp32: the same with one element a word.
__attribute__((noinline)) void count_special(__m512 before, __m512 after, int64_t* counts) {
  constexpr int kZero = 0x06, kNonfinite = 0x99;  // classes of numbers
  const __mmask16 zero_before = _mm512_fpclass_ps_mask(before, kZero), zero = _mm512_fpclass_ps_mask(after, kZero);
  counts[kCountNonzero] += 16 - _mm_popcnt_u32(zero_before);
  counts[kCountZeroed] += _mm_popcnt_u32(static_cast<__mmask16>(zero & ~zero_before));
  counts[kCountNonfinite] += _mm_popcnt_u32(_mm512_fpclass_ps_mask(after, kNonfinite));
}

template <bool kCounted>
inline void fault_column(const Counter& counter, const Segment* table, uint64_t block, uint32_t* values,
                         ColumnLanes<Float32>& lanes, int64_t* counts) {
  __m512i words[2];
  draw(counter, block, words);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m512 x = _mm512_loadu_ps(values + 16 * half);
    const __m512 moved =
        _mm512_fmadd_ps(deviates<Float32>(_mm512_or_si512(words[half], _mm512_set1_epi32(1)), table), x, x);
    const __mmask16 moves = _mm512_cmp_ps_mask(moved, x, _CMP_NEQ_OQ);
    __m512 y = _mm512_mask_mov_ps(x, moves, moved);
    _mm512_storeu_ps(values + 16 * half, y);
    if constexpr (!kCounted) continue;
    counts[kCountChanged] += _mm_popcnt_u32(moves);
    if (__builtin_expect(_mm512_fpclass_ps_mask(y, 0x9F) != 0, 0)) {  // zero or not finite
      count_special(x, y, counts);
      x = zero_unless_finite(x, y), y = zero_unless_finite(y, y);
    } else {
      counts[kCountNonzero] += 16;
    }
    add(lanes, half, x, y);
  }
}

// 8 -> 1 in the order of add_chunk_lanes: a chunk is half a vector.
inline void write_chunks(const __m512 (&lanes)[kVectors<Float32>], float* chunks) {
  const __m512 pairs =
      _mm512_add_ps(_mm512_shuffle_ps(lanes[0], lanes[1], 0x88), _mm512_shuffle_ps(lanes[0], lanes[1], 0xDD));
  const __m512 quads = _mm512_add_ps(pairs, _mm512_movehdup_ps(pairs));  // of the first vector at 0, of the last at 2
  const __m512i first = _mm512_setr_epi32(0, 8, 2, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i second = _mm512_setr_epi32(4, 12, 6, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512 sums = _mm512_add_ps(_mm512_permutexvar_ps(first, quads), _mm512_permutexvar_ps(second, quads));
  _mm_store_ps(chunks, _mm512_castps512_ps128(sums));
}

// A chunk is even and odd elements of four neighbouring words.
inline void write_chunks(const __m512 (&lanes)[kVectors<BFloat16>], float* chunks) {
  const __m512 first = _mm512_add_ps(lanes[0], lanes[1]), last = _mm512_add_ps(lanes[2], lanes[3]);
  const __m512 quads = _mm512_add_ps(_mm512_shuffle_ps(first, last, 0x88), _mm512_shuffle_ps(first, last, 0xDD));
  const __m512 sums = _mm512_add_ps(quads, _mm512_movehdup_ps(quads));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_store_ps(chunks, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums)));
}

// 32 -> 1 in the order of add_tree.
inline double add_group(const float* chunks) {
  __m512d part[4];
  for (int i = 0; i < 4; ++i) part[i] = _mm512_cvtps_pd(_mm256_load_ps(chunks + 8 * i));
  const __m512d eight = _mm512_add_pd(_mm512_add_pd(part[0], part[2]), _mm512_add_pd(part[1], part[3]));
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

inline Vector larger(Vector a, Vector b) { return _mm512_max_ps(a, b); }
inline float largest(Vector a) { return _mm512_reduce_max_ps(a); }

}  // namespace
}  // namespace faultline::numeric::cpu
