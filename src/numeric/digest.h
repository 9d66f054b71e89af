// The digest: an order-aware fingerprint of a tensor's bytes. The bytes are cut into tiles of 16 KiB (4,096 words of 32
// bits, the last one filled with zeros); a tile's hash is H_t = sum k_j * w_tj with fixed secret keys k_j < 2^56, and
// D = sum alpha^t * H_t + alpha^T * kappa * (size + 1), all modulo the prime 2^61 - 1. Modular sums do not depend on
// their order, so any launch shape gives the same value. A corruption chosen independently of the keys is missed with
// probability at most 2^-56 + T / 2^61 for T tiles: two different tiles agree only if a nonzero linear form in the keys
// vanishes, and otherwise alpha must be a root of a nonzero polynomial of degree at most T.
// The checksum beside it is the plain integer sum that other tools print; it is blind to exchanged elements.
#pragma once

#include "base/rng.h"

namespace faultline::numeric {

inline constexpr int kDigestWords = 4096;
inline constexpr int64_t kDigestTile = kDigestWords * 4;
inline constexpr int64_t kDigestStateWords = 4;  // of a digest on its device: the digest, then three of work
inline constexpr uint64_t kDigestPrime = (uint64_t{1} << 61) - 1;
inline constexpr uint64_t kDigestAlpha = 0x0B2F6A51C3D8E947ull;  // both below the prime, drawn once
inline constexpr uint64_t kDigestKappa = 0x15C8D40E7A9B3F61ull;
inline constexpr uint64_t kDigestSeed = 0x6661756C746C696Eull;

FL_HD uint64_t fold61(uint64_t value) { return (value & kDigestPrime) + (value >> 61); }  // < 2^61 + 8

FL_HD uint64_t reduce61(uint64_t value) {
  value = fold61(value);
  return value >= kDigestPrime ? value - kDigestPrime : value;
}

FL_HD uint64_t multiply61(uint64_t a, uint64_t b) {  // a, b < 2^62
#if defined(__CUDA_ARCH__)
  const uint64_t low = a * b, high = __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  const uint64_t low = static_cast<uint64_t>(product), high = static_cast<uint64_t>(product >> 64);
#endif
  return fold61((low & kDigestPrime) + ((low >> 61) | (high << 3)));
}

FL_HD uint64_t power61(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = multiply61(result, base);
    base = multiply61(base, base);
  }
  return result;
}

// Keys 2i and 2i+1 of a tile, as 28-bit halves: sixteen products of a half and a word stay below 2^64.
struct DigestKeys {
  uint32_t low[2];
  uint32_t high[2];
};
FL_HD DigestKeys digest_keys(uint32_t pair) {
  const PhiloxWords words = philox(pair, 0, 0, 0, kDigestSeed);
  return {{words.word[0] >> 4, words.word[2] >> 4}, {words.word[1] >> 4, words.word[3] >> 4}};
}

// All low halves, then all high ones.
void fill_digest_keys(uint32_t (&words)[2 * kDigestWords]);

// low + high * 2^28, where both are sums of at most sixteen products.
FL_HD uint64_t combine_halves(uint64_t low, uint64_t high) {
  high = fold61(high);
  return fold61(low) + ((high << 28) & kDigestPrime) + (high >> 33);
}

FL_HD uint64_t finish_digest(uint64_t sum, uint64_t tiles, uint64_t size) {
  const uint64_t length = multiply61(power61(kDigestAlpha, tiles), multiply61(kDigestKappa, size + 1));
  return reduce61(fold61(sum) + length);
}

}  // namespace faultline::numeric
