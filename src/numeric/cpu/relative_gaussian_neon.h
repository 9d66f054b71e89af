// relative_gaussian.h's column with NEON. Noise leaves zeros and non-finite numbers what they are but for their bits (a
// zero's sign, a NaN's payload), so that one look at a column's results tells whether any element needs more than the
// rounded x (1 + g). A vector holds eight bf16 or four fp32 elements, for which a block of random words is drawn.
#pragma once

#include <arm_neon.h>

#include <type_traits>

#include "numeric/arithmetic.h"
#include "numeric/ledger.h"

namespace faultline::numeric::cpu {
namespace {

template <class Type>
constexpr bool kHasColumn = Type::kDtype == Dtype::kBFloat16 || Type::kDtype == Dtype::kFloat32;
constexpr int kDraws = 2;            // of four blocks each, side by side: one alone waits for its products
constexpr int kBlocks = 4 * kDraws;  // of random words, each for a vector of elements
template <class Type>
constexpr int kColumn = kBlocks * 128 / Type::kWidth;  // positions that are walked together
using Vector = float32x4_t;

// What Philox is given for a whole call.
struct Counter {
  uint32_t high, call, step;
  uint32x4_t low_keys[kPhiloxRounds], high_keys[kPhiloxRounds];
};

Counter make_counter(const Control& control, uint64_t key) {
  const PhiloxKeys keys = philox_keys(key);
  Counter counter;
  counter.high = counter_tag(control, kGaussianStream), counter.call = control.call, counter.step = control.step;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter.low_keys[round] = vdupq_n_u32(keys.low[round]);
    counter.high_keys[round] = vdupq_n_u32(keys.high[round]);
  }
  return counter;
}

// word ^ key ^ product in this order: GCC would put the key last, on the path from round to round (7 % slower).
inline uint32x4_t mix(uint32x4_t word, uint32x4_t key, uint32x4_t product) {
  uint32x4_t early = veorq_u32(word, key);
  asm("" : "+w"(early));
  return veorq_u32(early, product);
}

// The words of consecutive blocks, a vector each.
inline void draw(const Counter& counter, uint64_t block, uint32x4_t (&words)[kBlocks]) {
  const uint32x4_t lane = {0, 1, 2, 3}, first = vdupq_n_u32(0xD2511F53u), second = vdupq_n_u32(0xCD9E8D57u);
  uint32x4_t c0[kDraws], c1[kDraws], c2[kDraws], c3[kDraws];
  for (int i = 0; i < kDraws; ++i) {
    c0[i] = vaddq_u32(lane, vdupq_n_u32(static_cast<uint32_t>(block) + static_cast<uint32_t>(4 * i)));
    c1[i] = vdupq_n_u32(static_cast<uint32_t>(block >> 32) | counter.high);
    c2[i] = vdupq_n_u32(counter.call), c3[i] = vdupq_n_u32(counter.step);
  }
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < kDraws; ++i) {
      const auto p0_low = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(c0[i]), vget_low_u32(first)));
      const auto p0_high = vreinterpretq_u32_u64(vmull_high_u32(c0[i], first));
      const auto p1_low = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(c2[i]), vget_low_u32(second)));
      const auto p1_high = vreinterpretq_u32_u64(vmull_high_u32(c2[i], second));
      c0[i] = mix(c1[i], counter.low_keys[round], vuzp2q_u32(p1_low, p1_high));
      c2[i] = mix(c3[i], counter.high_keys[round], vuzp2q_u32(p0_low, p0_high));
      c1[i] = vuzp1q_u32(p1_low, p1_high), c3[i] = vuzp1q_u32(p0_low, p0_high);
    }
  }
  for (int i = 0; i < kDraws; ++i) {
    const uint32x4_t a = vzip1q_u32(c0[i], c2[i]), b = vzip2q_u32(c0[i], c2[i]);
    const uint32x4_t c = vzip1q_u32(c1[i], c3[i]), d = vzip2q_u32(c1[i], c3[i]);
    words[4 * i] = vzip1q_u32(a, c), words[4 * i + 1] = vzip2q_u32(a, c);
    words[4 * i + 2] = vzip1q_u32(b, d), words[4 * i + 3] = vzip2q_u32(b, d);
  }
}

// A vector of elements as they are stored, and its elements as floats: bf16's even and odd ones, or fp32's.
template <class Type>
using Stored = std::conditional_t<Type::kWidth == 16, uint16x8_t, uint32x4_t>;
template <class Type>
constexpr int kParts = 32 / Type::kWidth;
template <class Type>
struct Elements {
  float32x4_t part[kParts<Type>];
};

template <class Type>
inline Elements<Type> elements_of(Stored<Type> stored) {
  const auto bits = reinterpret_cast<uint32x4_t>(stored);
  if constexpr (Type::kWidth == 32) {
    return {vreinterpretq_f32_u32(bits)};
  } else {
    return {vreinterpretq_f32_u32(vshlq_n_u32(bits, 16)),
            vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xFFFF0000u)))};
  }
}

// `index`: for each of the four deviates a byte, or the low nine of sixteen bits.
template <class Type>
inline float32x4_t deviates(float32x4_t value, uint64_t index, const Segment* table) {
  constexpr int kStride = Type::kWidth / 2, kMask = Type::kWidth == 16 ? 255 : 511;
  const auto entry = [&](int i) { return vld1_f32(&table[index >> (kStride * i) & kMask].slope); };
  const float32x4_t low = vcombine_f32(entry(0), entry(1)), high = vcombine_f32(entry(2), entry(3));
  const uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(value), vdupq_n_u32(0x80000000u));
  const uint32x4_t base = veorq_u32(vreinterpretq_u32_f32(vuzp2q_f32(low, high)), sign);
  return vfmaq_f32(vreinterpretq_f32_u32(base), value, vuzp1q_f32(low, high));
}

// A vector's deviates: their indices cross to the integer side in one word.
template <class Type>
inline Elements<Type> deviates(uint32x4_t words, const Segment* table) {
  const int32x4_t odd_words = vreinterpretq_s32_u32(vorrq_u32(words, vdupq_n_u32(Type::kWidth == 16 ? 0x00010001 : 1)));
  if constexpr (Type::kWidth == 32) {
    const float32x4_t value = vcvtq_f32_s32(odd_words);
    const uint16x4_t tops = vshrn_n_u32(vreinterpretq_u32_f32(value), 16);
    return {deviates<Type>(value, vget_lane_u64(vreinterpret_u64_u16(tops), 0) >> 3, table)};
  } else {
    const float32x4_t even = vcvtq_n_f32_s32(vshlq_n_s32(odd_words, 16), 16);
    const float32x4_t odd = vcvtq_f32_s32(vshrq_n_s32(odd_words, 16));
    const uint16x8_t tops = vuzp2q_u16(vreinterpretq_u16_f32(even), vreinterpretq_u16_f32(odd));
    const uint64_t index = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(tops, 3)), 0);
    return {deviates<Type>(even, index, table), deviates<Type>(odd, index >> 32, table)};
  }
}

// A float rounded to bf16, in the upper half of each word; what is below is to be dropped.
inline uint32x4_t rounded(float32x4_t y) {
  const uint32x4_t bits = vreinterpretq_u32_f32(y);
  return vsubq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), vtstq_u32(bits, vdupq_n_u32(0x10000)));
}

// x (1 + g), rounded.
template <class Type>
inline Stored<Type> noisy(Elements<Type> x, Elements<Type> deviate) {
  for (int i = 0; i < kParts<Type>; ++i) x.part[i] = vfmaq_f32(x.part[i], deviate.part[i], x.part[i]);
  if constexpr (Type::kWidth == 32) {
    return vreinterpretq_u32_f32(x.part[0]);
  } else {
    return vreinterpretq_u16_u32(vsriq_n_u32(rounded(x.part[1]), rounded(x.part[0]), 16));
  }
}

inline Vector larger(Vector a, Vector b) { return vmaxq_f32(a, b); }
inline uint16x8_t larger(uint16x8_t a, uint16x8_t b) { return vmaxq_u16(a, b); }
inline uint32x4_t larger(uint32x4_t a, uint32x4_t b) { return vmaxq_u32(a, b); }
inline float largest(Vector a) { return vmaxvq_f32(a); }
inline uint32_t largest(uint16x8_t a) { return vmaxvq_u16(a); }
inline uint32_t largest(uint32x4_t a) { return vmaxvq_u32(a); }
inline int64_t sum(uint16x8_t a) { return vaddvq_u16(a); }
inline int64_t sum(uint32x4_t a) { return vaddvq_u32(a); }

// The ledger's lanes of a column. They do not fit into the registers: a first tile writes them, others add.
template <class Type>
struct ColumnLanes {
  static constexpr int kVectors = kBlocks * kParts<Type>;
  float32x4_t abs[kVectors], squared_error[kVectors], squared_value[kVectors], max[kParts<Type>];
  bool empty;
  ColumnLanes() {
    asm("" : "=m"(*this));  // as if written: GCC does not see that every column has a first tile
    empty = true;
  }
};

template <bool kFirst, class Type>
inline void add(ColumnLanes<Type>& lanes, int i, float32x4_t x, float32x4_t y, float32x4_t& max) {
  const float32x4_t size = vabdq_f32(y, x);
  lanes.abs[i] = kFirst ? size : vaddq_f32(lanes.abs[i], size);
  lanes.squared_error[i] = kFirst ? vmulq_f32(size, size) : vfmaq_f32(lanes.squared_error[i], size, size);
  lanes.squared_value[i] = kFirst ? vmulq_f32(x, x) : vfmaq_f32(lanes.squared_value[i], x, x);
  max = vmaxq_f32(max, size);
}

template <bool kFirst, class Type>
inline void add(ColumnLanes<Type>& lanes, const Stored<Type> (&before)[kBlocks], const Stored<Type> (&after)[kBlocks]) {
  Elements<Type> max;
  for (int i = 0; i < kParts<Type>; ++i) max.part[i] = kFirst ? vdupq_n_f32(0) : lanes.max[i];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    const Elements<Type> x = elements_of<Type>(before[b]), y = elements_of<Type>(after[b]);
    for (int i = 0; i < kParts<Type>; ++i) add<kFirst>(lanes, kParts<Type> * b + i, x.part[i], y.part[i], max.part[i]);
  }
  for (int i = 0; i < kParts<Type>; ++i) lanes.max[i] = max.part[i];
  lanes.empty = false;
}

template <class Type>
inline Stored<Type> magnitudes(Stored<Type> bits) {
  return bits & static_cast<typename Type::Bits>(~(1u << (Type::kWidth - 1)));
}
template <class Type>
inline Stored<Type> is_nonfinite(Stored<Type> bits) {
  return reinterpret_cast<Stored<Type>>(magnitudes<Type>(bits) >= Type::kInf);
}
// Of zero and non-finite numbers it is at least kSpecial.
template <class Type>
inline Stored<Type> magnitudes_less_one(Stored<Type> bits) {
  return magnitudes<Type>(bits) - typename Type::Bits{1};
}
template <class Type>
constexpr typename Type::Bits kSpecial = Type::kInf - 1;

// What was zero or not finite stays as it was.
template <class Type>
inline Stored<Type> settle(Stored<Type> before, Stored<Type> after, int64_t* counts) {
  const Stored<Type> y = magnitudes_less_one<Type>(before) >= kSpecial<Type> ? before : after;
  const auto nonzero = reinterpret_cast<Stored<Type>>(magnitudes<Type>(before) != 0),
             zero = reinterpret_cast<Stored<Type>>(magnitudes<Type>(y) == 0);
  counts[kCountNonzero] += sum(nonzero & 1);
  counts[kCountZeroed] += sum(nonzero & zero & 1);
  counts[kCountNonfinite] += sum(is_nonfinite<Type>(y) & 1);
  return y;
}

// Returns which bits stay.
template <class Type>
inline Stored<Type> store(Stored<Type> before, Stored<Type> after, typename Type::Bits* values) {
  __builtin_memcpy(values, &after, sizeof after);
  return reinterpret_cast<Stored<Type>>(before == after);
}

// Not inlined: the copies in its two callers were 5 % slower.
template <bool kCounted, class Type>
__attribute__((noinline)) void fault_column(const Counter& counter, const Segment* table, uint64_t block,
                                            typename Type::Bits* values, ColumnLanes<Type>& lanes, int64_t* counts) {
  constexpr int kPerVector = kColumn<Type> / kBlocks;
  uint32x4_t words[kBlocks];
  Stored<Type> before[kBlocks], after[kBlocks], extreme = {}, same = {};
  draw(counter, block, words);
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    __builtin_memcpy(&before[b], values + kPerVector * b, sizeof before[b]);
    after[b] = noisy<Type>(elements_of<Type>(before[b]), deviates<Type>(words[b], table));
    extreme = larger(extreme, magnitudes_less_one<Type>(after[b]));
  }
  if (__builtin_expect(largest(extreme) >= kSpecial<Type>, 0)) {
    for (int b = 0; b < kBlocks; ++b) {
      after[b] = settle<Type>(before[b], after[b], counts);
      same -= store<Type>(before[b], after[b], values + kPerVector * b);
      const Stored<Type> dropped = is_nonfinite<Type>(after[b]);  // must not enter the sums
      before[b] &= ~dropped, after[b] &= ~dropped;
    }
  } else {
    counts[kCountNonzero] += kColumn<Type>;
    for (int b = 0; b < kBlocks; ++b) same -= store<Type>(before[b], after[b], values + kPerVector * b);
  }
  if constexpr (!kCounted) return;
  counts[kCountChanged] += kColumn<Type> - sum(same);
  lanes.empty ? add<true>(lanes, before, after) : add<false>(lanes, before, after);
}

// 8 -> 1 in the order of add_chunk_lanes: a chunk's two vectors are bf16's even and odd elements or fp32's halves.
template <int kVectors>
inline void write_chunks(const float32x4_t (&lanes)[kVectors], float* chunks) {
  constexpr bool kEvenAndOdd = kVectors == ColumnLanes<BFloat16>::kVectors;
  for (int chunk = 0; chunk < kVectors / 2; chunk += 4) {
    float32x4_t pairs[4];
    for (int i = 0; i < 4; ++i) {
      const float32x4_t first = lanes[2 * (chunk + i)], second = lanes[2 * (chunk + i) + 1];
      pairs[i] = kEvenAndOdd ? vaddq_f32(first, second) : vpaddq_f32(first, second);
    }
    vst1q_f32(chunks + chunk, vpaddq_f32(vpaddq_f32(pairs[0], pairs[1]), vpaddq_f32(pairs[2], pairs[3])));
  }
}

// 32 -> 1 in the order of add_tree.
inline double add_group(const float* chunks) {
  float64x2_t part[16];
  for (int i = 0; i < 8; ++i) {
    const float32x4_t four = vld1q_f32(chunks + 4 * i);
    part[2 * i] = vcvt_f64_f32(vget_low_f32(four)), part[2 * i + 1] = vcvt_high_f64_f32(four);
  }
  for (int offset = 8; offset > 0; offset /= 2) {
    for (int i = 0; i < offset; ++i) part[i] = vaddq_f64(part[i], part[i + offset]);
  }
  return vaddvq_f64(part[0]);
}

}  // namespace
}  // namespace faultline::numeric::cpu
