// Fault kinds on a GPU: one in-place pass, a thread for each chunk of eight elements, evidence included. This kernel
// serves every kind, extent and key; relative_gaussian.cuh has the short form of the commonest case. Instantiated per
// dtype.
#pragma once

#include "numeric/arithmetic.h"
#include "numeric/cuda/evidence.cuh"
#include "numeric/cuda/relative_gaussian.cuh"

namespace faultline::numeric::cuda {

template <int kEntries>
__device__ __forceinline__ void load_table(const Segment* from, float scale, bool scaled, Segment* table) {
  for (int i = threadIdx.x; i < kEntries; i += kThreads) {
    const Segment entry = from[i];
    table[i] = scaled ? Segment{entry.slope * scale, entry.base * scale} : entry;
  }
  __syncthreads();
}

const Segment* device_table16();  // host: the address of the table in device memory
const Segment* device_table32();

// The random words of one chunk in one stream. Half words: one block for eight elements; whole words: two blocks.
struct ChunkWords {
  PhiloxWords block[2];
};

template <bool kHalf>
__device__ __forceinline__ uint32_t chunk_word(const ChunkWords& words, int j) {
  return kHalf ? half_word(words.block[0], j) : words.block[j >> 2].word[j & 3];
}

template <bool kHalf>
__device__ __forceinline__ ChunkWords draw_chunk(const Control& control, uint64_t key, int64_t chunk, uint32_t stream) {
  ChunkWords words;
  if (kHalf) {
    words.block[0] = element_words(control, key, static_cast<uint64_t>(chunk), stream);
  } else {
    words.block[0] = element_words(control, key, 2 * static_cast<uint64_t>(chunk), stream);
    words.block[1] = element_words(control, key, 2 * static_cast<uint64_t>(chunk) + 1, stream);
  }
  return words;
}

// One word of an element that is addressed by row key and column, or by column alone (correlated noise).
template <bool kHalf>
__device__ __noinline__ uint32_t keyed_word(const FaultArguments& a, const Control& control, uint64_t key, int64_t row,
                                            int64_t column, uint32_t stream, bool correlated) {
  const uint64_t block = static_cast<uint64_t>(column) / (kHalf ? 8 : 4);
  const uint32_t part = static_cast<uint32_t>(column % (kHalf ? 8 : 4));
  const int64_t row_key = a.row_keys ? a.row_keys[row] : static_cast<int64_t>(control.row_base) + row;
  const PhiloxWords words =
      correlated ? element_words(control, key, block, stream) : row_words(control, key, block, row_key, stream);
  return kHalf ? half_word(words, part) : words.word[part];
}

template <FaultKind kKind, class Type>
__global__ void __launch_bounds__(kThreads)
    fault_kernel(const __grid_constant__ FaultArguments a, Traversal traversal, typename Type::Bits* data,
                 const Segment* deviates, Evidence evidence) {
  using Bits = typename Type::Bits;
  constexpr bool kHalf = Type::kWidth == 16;
  constexpr int kEntries = uses_gaussian(kKind) ? (kHalf ? kSegments16 : kSegments32) : 1;
  __shared__ Segment table[kEntries];
  const Control control = begin(a.control, evidence);
  if (!control.armed) return;
  advance(evidence);
  const uint64_t key = a.noise_key;
  const float scale = call_scale(a, control);
  if constexpr (uses_gaussian(kKind)) load_table<kEntries>(deviates, scale, scales_table(kKind), table);
  const bool acts = lifetime_acts(a.lifetime, a.noise_key, control);
  const bool correlated = kKind == FaultKind::kNondeterministic &&
                          static_cast<NondeterministicMode>(a.mode) == NondeterministicMode::kCorrelated;
  const bool positions =
      a.extent.structure != Structure::kAll || a.reference != nullptr || a.keyed_by_row || correlated;
  LaneEvidence lane;
#pragma unroll 1
  for (int64_t tile = acts ? blockIdx.x : traversal.tiles; tile < traversal.tiles; tile += traversal.segments) {
    const int64_t chunk = tile * kTileChunks + threadIdx.x, first = chunk * kChunk;
    if (first >= a.elements) break;
    const int count = static_cast<int>(min(a.elements - first, static_cast<int64_t>(kChunk)));
    Chunk<Bits> values = load_chunk(data, first, count);
    int64_t row = 0, column = 0;
    if (positions) row = first / a.columns, column = first % a.columns;
    ChunkWords deviate_words, words, rounding_words;
    if constexpr (uses_gaussian(kKind)) {
      if (!a.keyed_by_row && !correlated) deviate_words = draw_chunk<kHalf>(control, key, chunk, kGaussianStream);
    }
    if constexpr (uses_word(kKind)) {
      if (!a.keyed_by_row) words = draw_chunk<false>(control, key, chunk, kFirstStream);
    }
    if (!is_bit_kind(kKind) && a.stochastic_rounding && !a.keyed_by_row)
      rounding_words = draw_chunk<false>(control, key, chunk, kRoundingStream);
    const bool sampled = is_sampled(chunk);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (j >= count) break;
      const Bits before = values.bits[j];
      const float x = Type::value(before);
      const bool selected = extent_selects(a.extent, a.mask_key, row, column);
      Bits after = before;
      if constexpr (is_bit_kind(kKind)) {
        if (selected) after = fault_bits<kKind, Type>(a, control, key, before, static_cast<uint64_t>(first + j));
      } else if (selected && is_finite(x)) {
        float g = 0, reference = 0;
        uint32_t word = 0;
        if constexpr (uses_gaussian(kKind)) {
          const uint32_t drawn = a.keyed_by_row || correlated
                                     ? keyed_word<kHalf>(a, control, key, row, column, kGaussianStream, correlated)
                                     : chunk_word<kHalf>(deviate_words, j);
          g = kHalf ? gaussian16(drawn, table) : gaussian32(drawn, table);
        }
        if constexpr (uses_word(kKind))
          word = a.keyed_by_row ? keyed_word<false>(a, control, key, row, column, kFirstStream, false)
                                : chunk_word<false>(words, j);
        if (a.reference != nullptr)
          reference = a.reference[a.axis == Axis::kToken ? row : a.axis == Axis::kChannel ? column : 0];
        const float y = fault_value<kKind, float>(a, scale, x, g, word, reference);
        if (!(y == x)) {
          if (a.stochastic_rounding) {
            after = Type::round_stochastic(
                y, a.keyed_by_row ? keyed_word<false>(a, control, key, row, column, kRoundingStream, false)
                                  : chunk_word<false>(rounding_words, j));
          } else {
            after = Type::round(y);
          }
        }
      }
      values.bits[j] = after;
      if (evidence.ledger != nullptr)
        add_element(lane, j, x, Type::value(after), before != after, selected, false, sampled, is_normal<Type>(x));
      if (positions && ++column == a.columns) column = 0, ++row;
    }
    store_chunk(data, first, count, values);
  }
  finish(lane, evidence, a.elements, acts);
}

template <class Type>
void launch_fault(const FaultArguments& a, const Traversal& traversal, void* data, const Evidence& evidence,
                  cudaStream_t stream) {
  const Segment* table = Type::kWidth == 16 ? device_table16() : device_table32();
  auto* values = static_cast<typename Type::Bits*>(data);
  if constexpr (Type::kWidth == 16) {
    if (is_plain_relative_gaussian(a, data))
      return launch_relative_gaussian<Type>(a, traversal, data, table, evidence, stream);
  }
#define FL_LAUNCH(kind)                                                                                             \
  case FaultKind::kind:                                                                                             \
    launch("fault", fault_kernel<FaultKind::kind, Type>, traversal, stream, a, traversal, values, table, evidence); \
    break
  switch (a.kind) {
    FL_LAUNCH(kRelativeGaussian);
    FL_LAUNCH(kAbsoluteGaussian);
    FL_LAUNCH(kScaledGaussian);
    FL_LAUNCH(kSystematicBias);
    FL_LAUNCH(kGain);
    FL_LAUNCH(kOffset);
    FL_LAUNCH(kTruncate);
    FL_LAUNCH(kDeadzone);
    FL_LAUNCH(kSaturate);
    FL_LAUNCH(kSpike);
    FL_LAUNCH(kBitflip);
    FL_LAUNCH(kStuckAt);
    FL_LAUNCH(kZero);
    FL_LAUNCH(kNan);
    FL_LAUNCH(kInf);
    FL_LAUNCH(kSwap);
    case FaultKind::kApproximate:
    case FaultKind::kStale:
      FL_LAUNCH(kAccumulate);
      FL_LAUNCH(kNondeterministic);
      FL_LAUNCH(kProfile);
    case FaultKind::kQuantize: break;  // quantize.cu
  }
#undef FL_LAUNCH
}

}  // namespace faultline::numeric::cuda
