// Counter-based random numbers: Philox4x32 (Salmon et al., SC'11). A draw is a pure function of (key, counter), so it
// does not depend on device, launch shape, thread count or on what was drawn before, and nothing has to be saved to
// resume. Ten rounds, as published with a safety margin; known-answer vectors of the reference implementation are in
// rng_test.
#pragma once

#include "base/host_device.h"

namespace faultline {

inline constexpr int kPhiloxRounds = 10;

struct PhiloxWords {
  uint32_t word[4];
};

template <int kRounds = kPhiloxRounds>
FL_HD PhiloxWords philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#if defined(__CUDA_ARCH__)
#pragma unroll
#elif !defined(__CUDACC__)
#pragma GCC unroll 10
#endif
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The same with the round keys worked out before: a kernel that draws with one key takes them as arguments.
struct PhiloxKeys {
  uint32_t low[kPhiloxRounds];
  uint32_t high[kPhiloxRounds];
};

inline PhiloxKeys philox_keys(uint64_t key) {
  PhiloxKeys keys;
  for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
    keys.low[round] = static_cast<uint32_t>(key) + round * 0x9E3779B9u;
    keys.high[round] = static_cast<uint32_t>(key >> 32) + round * 0xBB67AE85u;
  }
  return keys;
}

FL_HD PhiloxWords philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, const PhiloxKeys& keys) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ keys.low[round];
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ keys.high[round];
    c3 = static_cast<uint32_t>(p0);
  }
  return {{c0, c1, c2, c3}};
}

// A strong 64-bit mixer (the finaliser of SplitMix64): masks and permutations are drawn with it, one index at a time.
FL_HD uint64_t mix_bits(uint64_t value) {
  value += 0x9E3779B97F4A7C15ull;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

// Uniform in [0, 1) with 24 bits: exact in fp32.
FL_HD float unit_float(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f; }

// A bijection of {0 … size-1} chosen by a key: where "n distinct elements" or "pairs of regions" are wanted without a
// table. Rounds of multiply-add and xor-shift on the next power of two, walked until the value falls inside the range.
struct Permutation {
  uint64_t size = 1;
  uint64_t mask = 0;
  uint32_t shift = 1;
  uint64_t multiplier[4] = {1, 1, 1, 1};
  uint64_t inverse[4] = {1, 1, 1, 1};
  uint64_t increment[4] = {0, 0, 0, 0};
};

inline Permutation make_permutation(uint64_t size, uint64_t key) {
  Permutation permutation;
  permutation.size = size == 0 ? 1 : size;
  int bits = 1;
  while (bits < 63 && (uint64_t{1} << bits) < permutation.size) ++bits;
  permutation.mask = (uint64_t{1} << bits) - 1;
  permutation.shift = static_cast<uint32_t>((bits + 1) / 2);  // 2*shift >= bits: the xor-shift is its own inverse
  for (uint64_t round = 0; round < 4; ++round) {
    const uint64_t odd = mix_bits(key + 2 * round) | 1;
    uint64_t inverse = odd;  // Newton: each step doubles the number of right bits
    for (int step = 0; step < 6; ++step) inverse *= 2 - odd * inverse;
    permutation.multiplier[round] = odd;
    permutation.inverse[round] = inverse;
    permutation.increment[round] = mix_bits(key + 2 * round + 1);
  }
  return permutation;
}

FL_HD uint64_t permute(const Permutation& p, uint64_t index) {
  do {
    for (int round = 0; round < 4; ++round) {
      index = (index * p.multiplier[round] + p.increment[round]) & p.mask;
      index ^= index >> p.shift;
    }
  } while (index >= p.size);
  return index;
}

FL_HD uint64_t permute_back(const Permutation& p, uint64_t index) {
  do {
    for (int round = 3; round >= 0; --round) {
      index ^= index >> p.shift;
      index = ((index - p.increment[round]) * p.inverse[round]) & p.mask;
    }
  } while (index >= p.size);
  return index;
}

}  // namespace faultline
