// The evidence that a fault happened, and the one order in which it is summed. Every call adds to one row of doubles that
// lives on the tensor's device. The order of additions is fixed by element index, never by launch shape or thread count,
// so that CPU and CUDA write equal bits:
//
//   element -> chunk of 8 consecutive elements -> tile of 256 chunks -> segment of consecutive tiles
//
// Each of a tile's 2,048 positions is a lane with its own fp32 accumulator that runs through the segment's tiles; a
// segment's lanes are then added 8 -> 1 in fp32 and 256 -> 1 in fp64 by the fixed tree below, and the segments' partial
// sums again by that tree. On a GPU a lane is a register, on a CPU an element of an array that vectorises.
#pragma once

#include "base/host_device.h"

namespace faultline {

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
  kSampled,             // selected elements in the fixed 1/64 sample with x finite and not zero, y finite
  kSumSquaredRelative,  // sum (e/x)^2 over the sample: the realised strength, squared and summed
  kLedgerReserved,
  kLedgerColumns,
};

inline constexpr int kChunk = 8;
inline constexpr int kTileChunks = 256;
inline constexpr int kTile = kChunk * kTileChunks;
inline constexpr int64_t kMaxSegments = 2112;

struct Traversal {
  int64_t chunks = 0;
  int64_t tiles = 0;
  int64_t tiles_per_segment = 1;
  int64_t segments = 0;
};

inline Traversal make_traversal(int64_t chunks) {
  Traversal t;
  t.chunks = chunks;
  t.tiles = (chunks + kTileChunks - 1) / kTileChunks;
  t.tiles_per_segment = t.tiles <= kMaxSegments ? 1 : (t.tiles + kMaxSegments - 1) / kMaxSegments;
  t.segments = t.tiles == 0 ? 1 : (t.tiles + t.tiles_per_segment - 1) / t.tiles_per_segment;  // an empty tensor is a call too
  return t;
}

// What one segment contributes. All doubles, so that segments are added by one piece of code; counts stay exact.
enum PartialColumn : int {
  kPartialSumAbs,
  kPartialSumSquaredError,
  kPartialSumSquaredValue,
  kPartialSumRelative,
  kPartialMax,
  kPartialSelected,
  kPartialChanged,
  kPartialNonzero,
  kPartialZeroed,
  kPartialNonfinite,
  kPartialSaturated,
  kPartialSampled,
  kPartialColumns,
};

// The strength sample: groups of 32 chunks (256 elements), one in 64, chosen by a hash of the group's index so that no
// row length can align with it. Group 0 is always in.
FL_HD bool is_sampled(int64_t chunk) { return (static_cast<uint32_t>(chunk >> 5) * 0x9E3779B1u) >> 26 == 0; }

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

// All segments' partials -> ledger row: 256 strided sums, then the tree.
void add_to_ledger(const double* partials, int64_t segments, int64_t elements, double* row);

}  // namespace faultline
