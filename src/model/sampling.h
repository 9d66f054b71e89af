// How a token is drawn, in arithmetic that gives the same bits on every device, whatever the launch shape: sums of
// weights are integers, exp and log are our own, and no multiply stands where a compiler could fuse it with an add.
//
// Note [Sampling]
// For a row of V logits, temperature T, top_k, top_p, key and position:
//   l_v = usable_logit(logit v): NaN is the lowest value, infinities are +-1e30; m = max of l_v
//   greedy (T < 1e-6, or NaN): the lowest v with l_v = m; from here on T = 1 for its log-probability
//   s = 1 / T; weight W_v = fixed_weight(l_v - m, s) = round(2^40 exp((l_v - m) s)); S = sum of all W_v
//   order: tokens by l_v descending, equal ones by index ascending. Going down that order, the kept tokens end with the
//     first at which either top_k tokens are kept (top_k <= 0: no limit) or their W reach mass_target(top_p, S)
//     (top_p >= 1 or NaN: no limit). Both limits look at the whole row: top_p is not renormalised after top_k.
//   token: of the kept ones, the highest gumbel_score(l_v - m, s, gumbel_noise(key, position, v)), equal ones by the
//     lowest index; log-probability: log_probability(l_token - m, s, S), untruncated; NaN if any logit was NaN.
// V is at most 2^20, so that S <= 2^60.
#pragma once

#include "base/host_device.h"
#include "base/rng.h"

namespace faultline::model::sampling {

inline constexpr int64_t kMaxVocabulary = int64_t{1} << 20;
inline constexpr float kHugeLogit = 1e30f;
inline constexpr float kLeastTemperature = 1e-6f;
inline constexpr uint32_t kStream = 0x73616D70u;  // sets these draws apart from others with the same key
inline constexpr uint64_t kNoMassLimit = ~uint64_t{0};

FL_HD float usable_logit(float logit) {
  if (!(logit > -kHugeLogit)) return -kHugeLogit;
  return (logit < kHugeLogit ? logit : kHugeLogit) + 0.0f;  // one zero
}

FL_HD bool is_greedy(float temperature) { return !(temperature >= kLeastTemperature); }
FL_HD float inverse_temperature(float temperature) { return is_greedy(temperature) ? 1.0f : 1.0f / temperature; }

// The order of usable logits as unsigned integers: higher logit, higher number.
FL_HD uint32_t order_of(float logit) {
  const uint32_t bits = float_bits(logit);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
FL_HD float logit_of(uint32_t order) { return bits_float(order & 0x80000000u ? order & 0x7FFFFFFFu : ~order); }

// e^x for x <= 0, 0 below -80. x = n ln2 + r with |r| <= ln2 / 2, e^r by its series to r^7 (5e-9 left out).
FL_HD float exponential(float x) {
  if (x < -80.0f) return 0.0f;
  const float shifted = fused_multiply_add(x, 1.44269504f, 0x1.8p23f);
  const float n = shifted - 0x1.8p23f;
  float r = fused_multiply_add(n, -0x1.62e4p-1f, x);  // ln2 in two parts: n times the first is exact
  r = fused_multiply_add(n, -0x1.7f7d1cp-20f, r);
  float p = 1.0f / 5040;
  p = fused_multiply_add(p, r, 1.0f / 720);
  p = fused_multiply_add(p, r, 1.0f / 120);
  p = fused_multiply_add(p, r, 1.0f / 24);
  p = fused_multiply_add(p, r, 1.0f / 6);
  p = fused_multiply_add(p, r, 0.5f);
  p = fused_multiply_add(p, r, 1.0f);
  p = fused_multiply_add(p, r, 1.0f);
  return p * bits_float((float_bits(shifted) - 0x4B400000u + 127u) << 23);
}

// ln x for positive normal x. x = 2^e m with m about 1; ln m = 2 atanh(s), s = (m - 1) / (m + 1), by its series.
FL_HD float logarithm(float x) {
  const uint32_t bits = float_bits(x), offset = bits - 0x3F3504F3u;  // from sqrt(1/2)
  const float e = static_cast<float>(static_cast<int32_t>(offset) >> 23);
  const float m = bits_float((offset & 0x007FFFFFu) + 0x3F3504F3u);
  const float s = (m - 1.0f) / (m + 1.0f), square = s * s;
  float p = 2.0f / 9;
  p = fused_multiply_add(p, square, 2.0f / 7);
  p = fused_multiply_add(p, square, 2.0f / 5);
  p = fused_multiply_add(p, square, 2.0f / 3);
  const float tail = fused_multiply_add(e, 0x1.7f7d1cp-20f, (p * square) * s);
  return fused_multiply_add(e, 0x1.62e4p-1f, fused_multiply_add(2.0f, s, tail));
}

FL_HD uint64_t fixed_weight(float below_maximum, float inverse_temperature) {
  return static_cast<uint64_t>(fused_multiply_add(exponential(below_maximum * inverse_temperature), 0x1p40f, 0.5f));
}

FL_HD uint64_t mass_target(float top_p, uint64_t total) {
  if (!(top_p < 1.0f)) return kNoMassLimit;
  const double target = top_p > 0.0f ? static_cast<double>(top_p) * static_cast<double>(total) : 0.0;
  return target < 1.0 ? 1 : static_cast<uint64_t>(target);
}

// -ln(-ln(1 - t)) for t uniform in (0, 1), in steps of 2^-32: large values come from small t, where fp32 is fine.
FL_HD float gumbel_of(uint32_t word) {
  float t = fused_multiply_add(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
  t = t < 1.0f - 0x1p-24f ? t : 1.0f - 0x1p-24f;
  const float rest = 1.0f - t, taken = 1.0f - rest;  // what of t survived the rounding; the quotient puts it right
  return -logarithm(taken == 0.0f ? t : -logarithm(rest) * (t / taken));
}

// The noise of tokens 4 group ... 4 group + 3.
FL_HD PhiloxWords noise_words(int64_t key, int64_t position, uint32_t group) {
  const auto place = static_cast<uint64_t>(position);
  return philox(group, static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), kStream,
                static_cast<uint64_t>(key));
}
FL_HD float gumbel_noise(int64_t key, int64_t position, uint32_t token) {
  return gumbel_of(noise_words(key, position, token >> 2).word[token & 3]);
}

FL_HD float gumbel_score(float below_maximum, float inverse_temperature, float noise) {
  return fused_multiply_add(below_maximum, inverse_temperature, noise);
}

FL_HD float log_probability(float below_maximum, float inverse_temperature, uint64_t total) {
  const float mass = static_cast<float>(total) * 0x1p-40f;
  return fused_multiply_add(below_maximum, inverse_temperature, -logarithm(mass));
}

}  // namespace faultline::model::sampling
