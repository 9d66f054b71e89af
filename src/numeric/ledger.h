// The evidence that a fault happened, and the one way in which it is summed. Every call adds to one ledger row of
// 64-bit words that lives on the tensor's device. CPU and CUDA write equal words, because nothing depends on launch
// shape, thread count or the order in which blocks finish:
//
//   element -> chunk of 8 consecutive elements -> tile of 256 chunks -> segment: every n-th tile
//
// Each of a tile's 2,048 positions is a lane with its own fp32 accumulator that runs through the segment's tiles; a
// segment's lanes are then added 8 -> 1 in fp32 and 256 -> 1 in fp64 by the fixed tree below. On a GPU a lane is a
// register, on a CPU an element of an array that vectorises. Segments' sums are added exactly, as integers: a row keeps
// each sum as ten 32-bit digits in 64-bit words (Note [Exact sums]), so they may arrive in any order.
#pragma once

#include <vector>

#include "numeric/dtype.h"

namespace faultline::numeric {

enum LedgerColumn : int {
  kCalls,               // calls that reached the site while armed
  kActiveCalls,         // of these, calls in which the fault's lifetime let it act
  kElements,            // elements of the active calls
  kSelected,            // of these, elements inside the fault's extent
  kChanged,             // elements whose bits changed
  kNonzero,             // elements that were not zero before
  kZeroed,              // of these, elements that are zero after
  kNonfinite,           // elements that are NaN or infinite after
  kSaturated,           // elements clipped by a number format's range
  kSumAbsError,         // sum |e|, e = y - x, over elements finite before and after
  kSumSquaredError,     // sum e^2
  kSumSquaredValue,     // sum x^2
  kMaxAbsError,         // max |e|
  kSampled,             // selected elements in the fixed 1/64 sample with x normal (below 2^127), y finite
  kSumSquaredRelative,  // sum (e/x)^2 over the sample: the realised strength, squared and summed
  kStruck,              // codes or scales changed by a fault in a number format's encoding
  kLedgerColumns,
};

inline constexpr int kChunk = 8;
inline constexpr int kTileChunks = 256;
inline constexpr int kTile = kChunk * kTileChunks;
inline constexpr int64_t kMaxSegments = 2376;

// Segment k holds tiles k, k + segments, k + 2 segments, …: blocks that run together touch neighbouring memory.
struct Traversal {
  int64_t chunks = 0;
  int64_t tiles = 0;
  int64_t segments = 1;  // at least one: an empty tensor is a call too
};

// How many segments: a segment ends with the reduction of its lanes, which costs a block as much as several tiles, so
// tensors of ordinary size get as many as an H200 holds blocks at once (132 x 3), small ones fewer, huge ones some more
// to even out. Measured from 0.4 to 268 million elements; any function of the size would do, as all devices share it.
inline Traversal make_traversal(int64_t chunks) {
  const int64_t tiles = (chunks + kTileChunks - 1) / kTileChunks;
  const int64_t most = tiles <= 792 ? 264 : tiles < 32768 ? 396 : 1980;
  return {chunks, tiles, tiles == 0 ? 1 : tiles < most ? tiles : most};
}

// Where nothing is counted segments end for free, and more of them hide more latency.
inline Traversal make_uncounted_traversal(int64_t chunks) {
  const int64_t tiles = (chunks + kTileChunks - 1) / kTileChunks;
  const int64_t most = tiles < 16384 ? 792 : kMaxSegments;
  return {chunks, tiles, tiles == 0 ? 1 : tiles < most ? tiles : most};
}

// What one segment contributes.
enum PartialSum : int { kPartialAbs, kPartialSquaredError, kPartialSquaredValue, kPartialRelative, kPartialSums };
enum PartialCount : int {
  kCountSelected,
  kCountChanged,
  kCountNonzero,
  kCountZeroed,
  kCountNonfinite,
  kCountSaturated,
  kCountSampled,
  kPartialCounts
};
struct SegmentPartial {
  double sum[kPartialSums];
  double max;
  uint64_t count[kPartialCounts];
  uint64_t struck;
};

// Note [Exact sums]
// A ledger row is kRowWords 64-bit words: counts first (calls, active calls, elements, then PartialCount), the bits of
// the largest |e| as a double (they order like integers), a word that is nonzero once a sum has left the range, and for
// each PartialSum ten digits: digit i counts units of 2^(32 i - 160). A double is at most 85 bits wide once it is
// aligned to a digit, so adding it touches three digits, each by less than 2^32: four billion segments fit before a
// word could overflow. What lies below 2^-160 is dropped; at or above 2^160 the sum reads as infinite. A ledger holds
// several such rows, used in turn by the segments and added when it is read: blocks that end together then do not queue
// for one word.
inline constexpr int kWordCalls = 0, kWordActive = 1, kWordElements = 2, kWordCounts = 3, kWordMax = 10,
                     kWordOverflow = 11, kWordStruck = 12, kWordSums = 16;
inline constexpr int kDigits = 10;
inline constexpr int kLowestExponent = -160;
inline constexpr int kRowWords = kWordSums + kPartialSums * kDigits;
inline constexpr int kLedgerRows = 8;
inline constexpr int kLedgerWords = kLedgerRows * kRowWords;

struct Digits {
  int first = 0;  // digit index of the lowest
  uint32_t digit[3] = {0, 0, 0};
  bool overflow = false;
};

FL_HD Digits digits_of(double value) {  // value >= 0 or not finite
  Digits digits;
  const uint64_t bits = double_bits(value);
  const int exponent = static_cast<int>(bits >> 52);
  if (exponent == 0) return digits;  // zero and subnormal numbers
  uint64_t mantissa = (bits & 0xFFFFFFFFFFFFFull) | (uint64_t{1} << 52);
  int shift = exponent - 1075 - kLowestExponent;
  if (shift < 0) {
    mantissa = shift > -64 ? mantissa >> -shift : 0;
    shift = 0;
  }
  digits.overflow = shift + 53 > 32 * kDigits;
  if (digits.overflow) return digits;
  digits.first = shift / 32;
  const int offset = shift % 32;
  const uint64_t low = mantissa << offset, high = offset == 0 ? 0 : mantissa >> (64 - offset);
  digits.digit[0] = static_cast<uint32_t>(low);
  digits.digit[1] = static_cast<uint32_t>(low >> 32);
  digits.digit[2] = static_cast<uint32_t>(high);
  return digits;
}

// The strength sample: groups of 32 chunks (256 elements), one in 64, chosen by a hash of the group's index so that no
// row length can align with it. Group 0 is always in.
FL_HD bool is_sampled(int64_t chunk) { return (static_cast<uint32_t>(chunk >> 5) * 0x9E3779B1u) >> 26 == 0; }

// What the sample takes of it: subnormal numbers round coarsely and would not show the fault's strength.
template <class Type>
FL_HD bool is_normal(typename Type::Value x) {
  if constexpr (sizeof(x) == 8) return magnitude(x) >= 0x1p-1022 && magnitude(x) < 0x1p1023;
  return magnitude(static_cast<float>(x)) >= (Type::kExponentBits == 5 ? 0x1p-14f : 0x1p-126f) &&
         magnitude(static_cast<float>(x)) < 0x1p127f;
}

// e / x of a normal x, within ±2^60, zero below 2^-60: divided by x's mantissa after scaling by its exponent, so that
// nothing overflows on the way. A device divides by the usual correction steps, which then need no special cases and
// are correctly rounded, as the host's division is.
FL_HD float relative_error(float e, float x) {
  const uint32_t bits = float_bits(x);
  const float mantissa = bits_float((bits & 0x807FFFFFu) | 0x3F800000u);
  float scaled = e * bits_float((254u << 23) - (bits & 0x7F800000u));
  scaled = magnitude(scaled) > 0x1p60f ? with_sign(0x1p60f, scaled) : magnitude(scaled) < 0x1p-60f ? 0.0f : scaled;
#if defined(__CUDA_ARCH__)
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(mantissa));
  inverse = __fmaf_rn(__fmaf_rn(-mantissa, inverse, 1.0f), inverse, inverse);
  float quotient = scaled * inverse;
  quotient = __fmaf_rn(__fmaf_rn(-mantissa, quotient, scaled), inverse, quotient);
  return __fmaf_rn(__fmaf_rn(-mantissa, quotient, scaled), inverse, quotient);
#else
  return scaled / mantissa;
#endif
}
FL_HD double relative_error(double e, double x) { return e / x; }  // a CPU matter

FL_HD float add_chunk_lanes(const float lane[kChunk]) {
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}
FL_HD double add_chunk_lanes(const double lane[kChunk]) {
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

// 256 -> 1: within each group of 32 by halving (what warp shuffles do), then the eight groups in order. Overwrites.
inline double add_tree(double* value) {
  double total = 0;
  for (int group = 0; group < kTileChunks; group += 32) {
    for (int offset = 16; offset > 0; offset /= 2) {
      for (int lane = 0; lane < offset; ++lane) value[group + lane] += value[group + lane + offset];
    }
    total += value[group];
  }
  return total;
}

// CPU: adds one call's segments to a ledger.
void add_to_ledger(const std::vector<SegmentPartial>& partials, int64_t elements, uint64_t* words);

// A ledger's words -> the columns as numbers.
void decode_ledger(const uint64_t* words, double (&columns)[kLedgerColumns]);

}  // namespace faultline::numeric
