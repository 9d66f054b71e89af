// Fault kinds on a CPU. A tile of 2,048 elements passes through a few loops over arrays that stay in the first-level
// cache: load, draw, apply, round, account. The loops are plain so that the compiler vectorises them for whichever
// instruction set this file is being compiled for (FAULTLINE_ISA); the arithmetic in them is arithmetic.h's.
#include "numeric/arithmetic.h"
#include "numeric/cpu/evidence.h"
#include "numeric/cpu/kernels.h"
#if defined(__AVX512BW__) || defined(FAULTLINE_NEON)
#include "numeric/cpu/relative_gaussian.h"
#endif

namespace faultline::numeric::cpu {
namespace {

template <class Type>
struct Scratch {
  Tile<Type> tile;
  alignas(64) float deviate[kTile];
  alignas(64) uint32_t word[kTile];
  alignas(64) uint32_t packed[kTile];
  alignas(64) float reference[kTile];
  alignas(64) Segment table[Type::kWidth == 16 ? kSegments16 : kSegments32];
  int64_t row[kTile];
  int64_t column[kTile];
};

// What is the same for all elements of a call.
struct Call {
  const FaultArguments& a;
  uint64_t key;
  float scale;
  bool positions;  // rows and columns of elements are needed
};

template <class Type>
void find_positions(const Call& call, int64_t first, int count, Scratch<Type>& s) {
  if (!call.positions) return;
  int64_t row = first / call.a.columns, column = first % call.a.columns;
  for (int i = 0; i < count; ++i) {
    s.row[i] = row;
    s.column[i] = column;
    if (++column == call.a.columns) column = 0, ++row;
  }
}

int64_t row_key(const FaultArguments& a, int64_t row) {
  return a.row_keys ? a.row_keys[row] : static_cast<int64_t>(a.control.row_base) + row;
}

// Fills `words` so that the word of element i (or, packed two a word, its half word) stands at i. first is a multiple
// of a tile, hence of a block.
void draw_blocks(const Control& control, uint64_t key, uint64_t first_block, int blocks, uint32_t stream,
                 uint32_t* words) {
  const uint32_t high = static_cast<uint32_t>(first_block >> 32) | counter_tag(control, stream);
  const uint32_t low = static_cast<uint32_t>(first_block);  // a tile never crosses 2^32 blocks: it starts at a multiple
#pragma GCC ivdep
  for (int b = 0; b < blocks; ++b) {
    const PhiloxWords drawn = philox(low + static_cast<uint32_t>(b), high, control.call, control.step, key);
    words[4 * b + 0] = drawn.word[0];
    words[4 * b + 1] = drawn.word[1];
    words[4 * b + 2] = drawn.word[2];
    words[4 * b + 3] = drawn.word[3];
  }
}

// One word of an element that is addressed by row key and column, or by column alone (correlated noise).
template <class Type>
uint32_t keyed_word(const Call& call, const Scratch<Type>& s, int i, uint32_t stream, bool half, bool correlated) {
  const uint64_t column = static_cast<uint64_t>(s.column[i]);
  const uint64_t block = column / (half ? 8 : 4);
  const uint32_t part = static_cast<uint32_t>(column % (half ? 8 : 4));
  const PhiloxWords words = correlated ? element_words(call.a.control, call.key, block, stream)
                                       : row_words(call.a.control, call.key, block, row_key(call.a, s.row[i]), stream);
  return half ? half_word(words, part) : words.word[part];
}

template <class Type>
void draw_words(const Call& call, int64_t first, int count, uint32_t stream, Scratch<Type>& s) {
  if (call.a.keyed_by_row) {
    for (int i = 0; i < count; ++i) s.word[i] = keyed_word(call, s, i, stream, false, false);
  } else {
    draw_blocks(call.a.control, call.key, static_cast<uint64_t>(first) / 4, (count + 3) / 4, stream, s.word);
  }
}

template <class Type>
void draw_deviates(const Call& call, int64_t first, int count, Scratch<Type>& s) {
  constexpr bool kHalf = Type::kWidth == 16;
  const bool correlated = call.a.kind == FaultKind::kNondeterministic &&
                          static_cast<NondeterministicMode>(call.a.mode) == NondeterministicMode::kCorrelated;
  if (call.a.keyed_by_row || correlated) {
    for (int i = 0; i < count; ++i) {
      const uint32_t word = keyed_word(call, s, i, kGaussianStream, kHalf, correlated);
      s.deviate[i] = kHalf ? gaussian16(word, s.table) : gaussian32(word, s.table);
    }
    return;
  }
  constexpr int kPerBlock = kHalf ? 8 : 4;
  const uint64_t block = static_cast<uint64_t>(first) / kPerBlock;
  draw_blocks(call.a.control, call.key, block, (count + kPerBlock - 1) / kPerBlock, kGaussianStream, s.packed);
  if constexpr (kHalf) {
#pragma GCC ivdep
    for (int pair = 0; pair < (count + 1) / 2; ++pair) {
      s.deviate[2 * pair] = gaussian16(s.packed[pair] & 0xFFFFu, s.table);
      s.deviate[2 * pair + 1] = gaussian16(s.packed[pair] >> 16, s.table);
    }
  } else {
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) s.deviate[i] = gaussian32(s.packed[i], s.table);
  }
}

template <class Type>
void select_elements(const Call& call, int count, Scratch<Type>& s) {
  if (call.a.extent.structure == Structure::kAll) {
    for (int i = 0; i < count; ++i) s.tile.selected[i] = 1;
    return;
  }
  for (int i = 0; i < count; ++i) {
    s.tile.selected[i] = extent_selects(call.a.extent, call.a.mask_key, s.row[i], s.column[i]);
  }
}

template <class Type>
void fill_reference(const Call& call, int count, Scratch<Type>& s) {
  if (call.a.reference == nullptr) return;
  for (int i = 0; i < count; ++i) {
    s.reference[i] = call.a.reference[call.a.axis == Axis::kToken     ? s.row[i]
                                      : call.a.axis == Axis::kChannel ? s.column[i]
                                                                      : 0];
  }
}

template <FaultKind kKind, class Type>
void apply_values(const Call& call, int64_t first, int count, Scratch<Type>& s) {
  using Value = typename Type::Value;
  Tile<Type>& t = s.tile;
  if constexpr (uses_gaussian(kKind)) draw_deviates(call, first, count, s);
  if constexpr (uses_word(kKind)) draw_words(call, first, count, kFirstStream, s);
  fill_reference(call, count, s);
#pragma GCC ivdep
  for (int i = 0; i < count; ++i) {
    const Value x = t.x[i];
    const Value y = fault_value<kKind, Value>(call.a, call.scale, x, s.deviate[i], s.word[i], s.reference[i]);
    t.y[i] = is_finite(x) & (t.selected[i] != 0) ? y : x;
  }
  if (call.a.stochastic_rounding) {
    draw_words(call, first, count, kRoundingStream, s);
    for (int i = 0; i < count; ++i) {
      const bool same = t.y[i] == t.x[i] || !is_finite(t.x[i]);
      t.after[i] = same ? t.before[i] : Type::round_stochastic(t.y[i], s.word[i]);
    }
  } else {
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) {
      // Both are there before one is chosen: without a branch the loop is vectorised.
      const auto before = t.before[i], rounded = Type::round(t.y[i]);
      t.after[i] = (t.y[i] == t.x[i]) | !is_finite(t.x[i]) ? before : rounded;
    }
  }
}

template <FaultKind kKind, class Type>
void apply_bits(const Call& call, int64_t first, int count, Scratch<Type>& s) {
  Tile<Type>& t = s.tile;
  for (int i = 0; i < count; ++i) {
    const auto faulted =
        fault_bits<kKind, Type>(call.a, call.a.control, call.key, t.before[i], static_cast<uint64_t>(first + i));
    t.after[i] = t.selected[i] ? faulted : t.before[i];
  }
}

template <FaultKind kKind, class Type>
void fault_segments(const FaultArguments& a, const Traversal& traversal, int64_t first, int64_t last, void* data,
                    SegmentPartial* partials) {
  using Bits = typename Type::Bits;
  Scratch<Type> s;  // 150 kB of stack
  Lanes<typename Type::Value> lanes;
  Tile<Type>& t = s.tile;
  const Call call{a, a.noise_key, call_scale(a, a.control),
                  a.extent.structure != Structure::kAll || a.reference != nullptr || a.keyed_by_row ||
                      a.kind == FaultKind::kNondeterministic};
  const float table_scale = scales_table(kKind) ? call.scale : 1.0f;
  constexpr int kEntries = Type::kWidth == 16 ? kSegments16 : kSegments32;
  for (int i = 0; i < kEntries; ++i) {
    const Segment entry = Type::kWidth == 16 ? kGaussian16[i % kSegments16] : kGaussian32[i];
    s.table[i] = scales_table(kKind) ? Segment{entry.slope * table_scale, entry.base * table_scale} : entry;
  }
  Bits* values = static_cast<Bits*>(data);
  __builtin_memset(t.saturated, 0, sizeof t.saturated);
  for (int64_t segment = first; segment < last; ++segment) {
    for (int64_t tile = segment; tile < traversal.tiles; tile += traversal.segments) {
      const int64_t begin = tile * kTile;
      const int count = static_cast<int>(a.elements - begin < kTile ? a.elements - begin : kTile);
      __builtin_memcpy(t.before, values + begin, sizeof(Bits) * static_cast<size_t>(count));
      for (int i = 0; i < count; ++i) t.x[i] = Type::value(t.before[i]);
      find_positions(call, begin, count, s);
      select_elements(call, count, s);
      if constexpr (is_bit_kind(kKind)) {
        apply_bits<kKind>(call, begin, count, s);
      } else {
        apply_values<kKind>(call, begin, count, s);
      }
      __builtin_memcpy(values + begin, t.after, sizeof(Bits) * static_cast<size_t>(count));
      if (partials == nullptr) continue;
      for (int i = 0; i < count; ++i) t.y[i] = Type::value(t.after[i]);
      add_tile(t, count, tile * kTileChunks, tile == segment, lanes);
    }
    if (partials != nullptr && segment < traversal.tiles) write_partial(lanes, partials[segment]);
  }
}

using SegmentFunction = void (*)(const FaultArguments&, const Traversal&, int64_t, int64_t, void*, SegmentPartial*);

template <class Type>
SegmentFunction function_for(const FaultArguments& a) {
#if defined(__AVX512BW__) || defined(FAULTLINE_NEON)
  if constexpr (kHasColumn<Type>) {
    if (is_plain_relative_gaussian(a)) return relative_gaussian_segments<Type>;
  }
#endif
  switch (a.kind) {
    case FaultKind::kRelativeGaussian: return fault_segments<FaultKind::kRelativeGaussian, Type>;
    case FaultKind::kAbsoluteGaussian: return fault_segments<FaultKind::kAbsoluteGaussian, Type>;
    case FaultKind::kScaledGaussian: return fault_segments<FaultKind::kScaledGaussian, Type>;
    case FaultKind::kSystematicBias: return fault_segments<FaultKind::kSystematicBias, Type>;
    case FaultKind::kGain: return fault_segments<FaultKind::kGain, Type>;
    case FaultKind::kOffset: return fault_segments<FaultKind::kOffset, Type>;
    case FaultKind::kTruncate: return fault_segments<FaultKind::kTruncate, Type>;
    case FaultKind::kDeadzone: return fault_segments<FaultKind::kDeadzone, Type>;
    case FaultKind::kSaturate: return fault_segments<FaultKind::kSaturate, Type>;
    case FaultKind::kSpike: return fault_segments<FaultKind::kSpike, Type>;
    case FaultKind::kBitflip: return fault_segments<FaultKind::kBitflip, Type>;
    case FaultKind::kStuckAt: return fault_segments<FaultKind::kStuckAt, Type>;
    case FaultKind::kZero: return fault_segments<FaultKind::kZero, Type>;
    case FaultKind::kNan: return fault_segments<FaultKind::kNan, Type>;
    case FaultKind::kInf: return fault_segments<FaultKind::kInf, Type>;
    case FaultKind::kSwap: return fault_segments<FaultKind::kSwap, Type>;
    case FaultKind::kAccumulate:
    case FaultKind::kApproximate:
    case FaultKind::kStale: return fault_segments<FaultKind::kAccumulate, Type>;
    case FaultKind::kNondeterministic: return fault_segments<FaultKind::kNondeterministic, Type>;
    case FaultKind::kProfile: return fault_segments<FaultKind::kProfile, Type>;
    case FaultKind::kQuantize: break;  // quantize.cpp
  }
  return nullptr;
}

}  // namespace

namespace FAULTLINE_ISA {

void fault(const FaultArguments& a, const Traversal& traversal, int64_t first, int64_t last, void* data,
           SegmentPartial* partials) {
  const SegmentFunction function = dispatch_dtype(a.dtype, [&](auto type) { return function_for<decltype(type)>(a); });
  function(a, traversal, first, last, data, partials);
}

}  // namespace FAULTLINE_ISA
}  // namespace faultline::numeric::cpu
