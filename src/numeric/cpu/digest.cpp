// Digest and checksum on a CPU. A vector of words is multiplied by its keys with the instruction that takes two 32-bit
// numbers to 64 bits; sixteen products are added to each lane before it is folded, and no sum leaves its register
// meanwhile.
#include "numeric/digest.h"

#include "numeric/cpu/kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace faultline::numeric::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kWords = 16;
#elif defined(__AVX2__)
constexpr int kWords = 8;
#else
constexpr int kWords = 4;  // of 32 bits in a vector
#endif
typedef uint64_t Wide __attribute__((vector_size(4 * kWords)));
typedef uint32_t Words __attribute__((vector_size(4 * kWords)));

struct KeyTable {
  alignas(64) uint32_t words[2 * kDigestWords];
  KeyTable() { fill_digest_keys(words); }
};

inline Words load(const void* from) {
  Words words;
  __builtin_memcpy(&words, from, sizeof words);
  return words;
}

// Products of words and keys, added lane by lane; which product goes to which lane does not matter.
#if defined(__SSE2__)
inline Wide multiply_even(Words a, Words b) {
#if defined(__AVX512F__)
  return (Wide)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);  // g++ 12 warns of the plain form's header
#elif defined(__AVX2__)
  return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
  return (Wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#endif
}
inline Words odd(Words a) { return (Words)((Wide)a >> 32); }
inline void add_products(Wide (&sums)[2], Words words, Words keys) {
  sums[0] += multiply_even(words, keys);
  sums[1] += multiply_even(odd(words), odd(keys));
}
#elif defined(__aarch64__)
inline void add_products(Wide (&sums)[2], Words words, Words keys) {
  sums[0] = (Wide)vmlal_u32((uint64x2_t)sums[0], vget_low_u32((uint32x4_t)words), vget_low_u32((uint32x4_t)keys));
  sums[1] = (Wide)vmlal_high_u32((uint64x2_t)sums[1], (uint32x4_t)words, (uint32x4_t)keys);
}
#else
inline void add_products(Wide (&sums)[2], Words words, Words keys) {
  for (int i = 0; i < kWords; ++i) sums[i / 2 % 2][i % 2] += uint64_t{words[i]} * keys[i];
}
#endif

inline Wide fold(Wide value) { return (value & kDigestPrime) + (value >> 61); }

// combine_halves, lane by lane.
inline Wide combined(Wide low, Wide high) {
  high = fold(high);
  return fold(low) + ((high << 28) & kDigestPrime) + (high >> 33);
}

uint64_t tile_hash(const char* bytes, const KeyTable& keys) {
  constexpr int kProducts = 16;
  Wide total = {};
  for (int first = 0; first < kDigestWords; first += kProducts * kWords) {
    Wide low[2] = {}, high[2] = {};
    for (int word = first; word < first + kProducts * kWords; word += kWords) {
      const Words words = load(bytes + 4 * word);
      add_products(low, words, load(keys.words + word));
      add_products(high, words, load(keys.words + kDigestWords + word));
    }
    total = fold(total + combined(low[0], high[0]));
    total = fold(total + combined(low[1], high[1]));
  }
  uint64_t sum = 0;
  for (int i = 0; i < kWords / 2; ++i) sum = fold61(sum + total[i]);
  return sum;
}

template <class Integer>
uint64_t sum_of(const void* data, int64_t first, int64_t last) {
  uint64_t total = 0;
  const auto* values = static_cast<const Integer*>(data);
  for (int64_t i = first; i < last; ++i) total += static_cast<uint64_t>(static_cast<int64_t>(values[i]));
  return total;
}

}  // namespace

namespace FAULTLINE_ISA {

// sum over tiles [first, last) of alpha^t * H_t
uint64_t digest_tiles(const void* bytes, int64_t size, int64_t first, int64_t last) {
  static const KeyTable keys;
  uint64_t power = power61(kDigestAlpha, static_cast<uint64_t>(first)), total = 0;
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t left = size - tile * kDigestTile;
    const char* from = static_cast<const char*>(bytes) + tile * kDigestTile;
    alignas(64) char filled[kDigestTile];
    if (left < kDigestTile) {
      __builtin_memcpy(filled, from, static_cast<size_t>(left));
      __builtin_memset(filled + left, 0, static_cast<size_t>(kDigestTile - left));
      from = filled;
    }
    total = fold61(total + multiply61(power, tile_hash(from, keys)));
    power = multiply61(power, kDigestAlpha);
  }
  return total;
}

uint64_t checksum(const void* data, int element_size, int64_t first, int64_t last) {
  switch (element_size) {
    case 1: return sum_of<uint8_t>(data, first, last);
    case 2: return sum_of<int16_t>(data, first, last);
    case 4: return sum_of<int32_t>(data, first, last);
    default: return sum_of<int64_t>(data, first, last);
  }
}

}  // namespace FAULTLINE_ISA
}  // namespace faultline::numeric::cpu
