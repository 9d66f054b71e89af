// Digest and checksum on a CPU. A tile is sixteen strips of 256 words, so that each of 256 lanes adds exactly sixteen
// products before it is folded.
#include "numeric/digest.h"

#include "numeric/cpu/kernels.h"

namespace faultline::cpu {
namespace {

constexpr int kStrip = 256;

struct KeyTable {
  alignas(64) uint32_t words[2 * kDigestWords];
  KeyTable() { fill_digest_keys(words); }
};

uint64_t tile_hash(const uint32_t* words, const KeyTable& keys) {
  alignas(64) uint64_t low[kStrip] = {};
  alignas(64) uint64_t high[kStrip] = {};
  for (int strip = 0; strip < kDigestWords; strip += kStrip) {
#pragma GCC ivdep
    for (int i = 0; i < kStrip; ++i) {
      const uint64_t word = words[strip + i];
      low[i] += word * keys.words[strip + i];
      high[i] += word * keys.words[kDigestWords + strip + i];
    }
  }
  uint64_t total = 0;
  for (int i = 0; i < kStrip; ++i) total = fold61(total + combine_halves(low[i], high[i]));
  return total;
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
  alignas(64) uint32_t words[kDigestWords];
  uint64_t power = power61(kDigestAlpha, static_cast<uint64_t>(first)), total = 0;
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t left = size - tile * kDigestTile;
    const int64_t count = left < kDigestTile ? left : kDigestTile;
    __builtin_memcpy(words, static_cast<const char*>(bytes) + tile * kDigestTile, static_cast<size_t>(count));
    __builtin_memset(reinterpret_cast<char*>(words) + count, 0, static_cast<size_t>(kDigestTile - count));
    total = fold61(total + multiply61(power, tile_hash(words, keys)));
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
}  // namespace faultline::cpu
