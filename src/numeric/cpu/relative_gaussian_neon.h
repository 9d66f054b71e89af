// relative_gaussian.h's column with NEON. Noise leaves zeros and non-finite numbers what they are but for their bits (a
// zero's sign, a NaN's payload), so that one look at a column's results tells whether any element needs more than the
// rounded x (1 + g).
#pragma once

#include <arm_neon.h>

#include "numeric/arithmetic.h"
#include "numeric/ledger.h"

namespace faultline::cpu {
namespace {

constexpr int kDraws = 2;                  // of four blocks each, side by side: one alone waits for its products
constexpr int kBlocks = 4 * kDraws;        // of random words, each for a chunk of elements
constexpr int kColumn = kBlocks * kChunk;  // positions that are walked together
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

struct Elements {  // a chunk
  float32x4_t even, odd;
};
inline Elements elements_of(uint32x4_t bits) {
  return {vreinterpretq_f32_u32(vshlq_n_u32(bits, 16)),
          vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xFFFF0000u)))};
}

// `index`: a byte for each of the four deviates.
inline float32x4_t deviates(float32x4_t value, uint64_t index, const Segment* table) {
  const auto entry = [&](int i) { return vld1_f32(&table[index >> (8 * i) & 255].slope); };
  const float32x4_t low = vcombine_f32(entry(0), entry(1)), high = vcombine_f32(entry(2), entry(3));
  const uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(value), vdupq_n_u32(0x80000000u));
  const uint32x4_t base = veorq_u32(vreinterpretq_u32_f32(vuzp2q_f32(low, high)), sign);
  return vfmaq_f32(vreinterpretq_f32_u32(base), value, vuzp1q_f32(low, high));
}

// A chunk's deviates: the eight indices cross to the integer side in one word.
inline Elements deviates(uint32x4_t words, const Segment* table) {
  const int32x4_t odd_words = vreinterpretq_s32_u32(vorrq_u32(words, vdupq_n_u32(0x00010001)));
  const float32x4_t even = vcvtq_n_f32_s32(vshlq_n_s32(odd_words, 16), 16);
  const float32x4_t odd = vcvtq_f32_s32(vshrq_n_s32(odd_words, 16));
  const uint16x8_t tops = vuzp2q_u16(vreinterpretq_u16_f32(even), vreinterpretq_u16_f32(odd));
  const uint64_t index = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(tops, 3)), 0);
  return {deviates(even, index, table), deviates(odd, index >> 32, table)};
}

// x (1 + g) rounded to bf16, in the upper half of each word; what is below is to be dropped.
inline uint32x4_t noisy(float32x4_t x, float32x4_t deviate) {
  const uint32x4_t bits = vreinterpretq_u32_f32(vfmaq_f32(x, deviate, x));
  return vsubq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), vtstq_u32(bits, vdupq_n_u32(0x10000)));
}

// The ledger's lanes of a column. They do not fit into the registers: a first tile writes them, others add.
struct ColumnLanes {
  float32x4_t abs[2 * kBlocks], squared_error[2 * kBlocks], squared_value[2 * kBlocks], max[2];
  bool empty = true;
};

template <bool kFirst>
inline void add(ColumnLanes& lanes, int i, float32x4_t x, float32x4_t y, float32x4_t& max) {
  const float32x4_t size = vabdq_f32(y, x);
  lanes.abs[i] = kFirst ? size : vaddq_f32(lanes.abs[i], size);
  lanes.squared_error[i] = kFirst ? vmulq_f32(size, size) : vfmaq_f32(lanes.squared_error[i], size, size);
  lanes.squared_value[i] = kFirst ? vmulq_f32(x, x) : vfmaq_f32(lanes.squared_value[i], x, x);
  max = vmaxq_f32(max, size);
}

template <bool kFirst>
inline void add(ColumnLanes& lanes, const uint32x4_t (&before)[kBlocks], const uint32x4_t (&after)[kBlocks]) {
  float32x4_t even = kFirst ? vdupq_n_f32(0) : lanes.max[0], odd = kFirst ? vdupq_n_f32(0) : lanes.max[1];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    const Elements x = elements_of(before[b]), y = elements_of(after[b]);
    add<kFirst>(lanes, 2 * b, x.even, y.even, even);
    add<kFirst>(lanes, 2 * b + 1, x.odd, y.odd, odd);
  }
  lanes.max[0] = even, lanes.max[1] = odd;
  lanes.empty = false;
}

constexpr uint16_t kSpecial = 0x7F7F;  // the magnitude, less one, of zero and non-finite numbers is at least this
inline uint16x8_t magnitude_less_one(uint32x4_t bits) {
  return vsubq_u16(vandq_u16(vreinterpretq_u16_u32(bits), vdupq_n_u16(0x7FFF)), vdupq_n_u16(1));
}

inline uint16x8_t is_nonfinite(uint32x4_t bits) {
  return vcgeq_u16(vandq_u16(vreinterpretq_u16_u32(bits), vdupq_n_u16(0x7FFF)), vdupq_n_u16(0x7F80));
}

inline int64_t count_of(uint16x8_t mask) { return vaddvq_u16(vshrq_n_u16(mask, 15)); }

// What was zero or not finite stays as it was.
inline uint32x4_t settle(uint32x4_t before, uint32x4_t after, int64_t* counts) {
  const uint16x8_t kept = vcgeq_u16(magnitude_less_one(before), vdupq_n_u16(kSpecial));
  const uint16x8_t x = vreinterpretq_u16_u32(before), y = vbslq_u16(kept, x, vreinterpretq_u16_u32(after));
  const uint16x8_t nonzero = vtstq_u16(x, vdupq_n_u16(0x7FFF)), nonzero_after = vtstq_u16(y, vdupq_n_u16(0x7FFF));
  counts[kCountNonzero] += count_of(nonzero);
  counts[kCountZeroed] += count_of(vbicq_u16(nonzero, nonzero_after));
  counts[kCountNonfinite] += count_of(is_nonfinite(vreinterpretq_u32_u16(y)));
  return vreinterpretq_u32_u16(y);
}

// What is not finite after must not enter the sums.
inline void drop_nonfinite(uint32x4_t& before, uint32x4_t& after) {
  const uint32x4_t dropped = vreinterpretq_u32_u16(is_nonfinite(after));
  before = vbicq_u32(before, dropped), after = vbicq_u32(after, dropped);
}

// Returns which bits stay.
inline uint16x8_t store(uint32x4_t before, uint32x4_t after, uint16_t* values) {
  vst1q_u16(values, vreinterpretq_u16_u32(after));
  return vceqq_u16(vreinterpretq_u16_u32(before), vreinterpretq_u16_u32(after));
}

template <bool kCounted>
inline void fault_column(const Counter& counter, const Segment* table, uint64_t block, uint16_t* values,
                         ColumnLanes& lanes, int64_t* counts) {
  uint32x4_t words[kBlocks], before[kBlocks], after[kBlocks];
  draw(counter, block, words);
  uint16x8_t extreme = vdupq_n_u16(0), same = vdupq_n_u16(0);
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    before[b] = vreinterpretq_u32_u16(vld1q_u16(values + kChunk * b));
    const Elements x = elements_of(before[b]), deviate = deviates(words[b], table);
    after[b] = vsriq_n_u32(noisy(x.odd, deviate.odd), noisy(x.even, deviate.even), 16);
    extreme = vmaxq_u16(extreme, magnitude_less_one(after[b]));
  }
  if (__builtin_expect(vmaxvq_u16(extreme) >= kSpecial, 0)) {
    for (int b = 0; b < kBlocks; ++b) {
      after[b] = settle(before[b], after[b], counts);
      same = vsubq_u16(same, store(before[b], after[b], values + kChunk * b));
      drop_nonfinite(before[b], after[b]);
    }
  } else {
    counts[kCountNonzero] += kColumn;
    for (int b = 0; b < kBlocks; ++b) same = vsubq_u16(same, store(before[b], after[b], values + kChunk * b));
  }
  if constexpr (!kCounted) return;
  counts[kCountChanged] += kColumn - vaddvq_u16(same);
  lanes.empty ? add<true>(lanes, before, after) : add<false>(lanes, before, after);
}

// 8 -> 1 in the order of add_chunk_lanes.
inline void write_chunks(const float32x4_t (&lanes)[2 * kBlocks], float* chunks) {
  for (int b = 0; b < kBlocks; b += 4) {
    float32x4_t pairs[4];
    for (int i = 0; i < 4; ++i) pairs[i] = vaddq_f32(lanes[2 * (b + i)], lanes[2 * (b + i) + 1]);
    vst1q_f32(chunks + b, vpaddq_f32(vpaddq_f32(pairs[0], pairs[1]), vpaddq_f32(pairs[2], pairs[3])));
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

inline Vector larger(Vector a, Vector b) { return vmaxq_f32(a, b); }
inline float largest(Vector a) { return vmaxvq_f32(a); }

}  // namespace
}  // namespace faultline::cpu
