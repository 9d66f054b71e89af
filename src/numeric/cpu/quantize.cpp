// Number formats on a CPU: a tile of padded row chunks is gathered, its blocks' scales are found, then one loop over
// the tile quantises and dequantises. The arithmetic is formats.h's.
#include "numeric/arithmetic.h"
#include "numeric/cpu/evidence.h"
#include "numeric/cpu/kernels.h"
#include "numeric/formats.h"

namespace faultline::numeric::cpu {
namespace {

// Where a chunk of the padded traversal lies in the tensor.
struct ChunkPlace {
  int64_t row;
  int64_t column;
  int count;  // elements that exist, 0 … 8
};

ChunkPlace place_of(const QuantizeArguments& q, int64_t chunk) {
  const int64_t row = chunk / q.chunks_per_row, column = (chunk % q.chunks_per_row) * kChunk;
  const int64_t left = q.columns - column;
  return {row, column, static_cast<int>(left <= 0 ? 0 : left < kChunk ? left : kChunk)};
}

template <class Type>
struct Scratch {
  Tile<Type> tile;
  alignas(64) Scale scale[kTileChunks];
  alignas(64) uint8_t poisoned[kTileChunks];  // nonfinite: spec
  alignas(64) uint8_t exists[kTile];
  ChunkPlace place[kTileChunks];
};

template <class Type>
void gather(const QuantizeArguments& q, const typename Type::Bits* data, int64_t first_chunk, int chunks,
            Scratch<Type>& s) {
  for (int c = 0; c < chunks; ++c) {
    s.place[c] = place_of(q, first_chunk + c);
    const auto* from = data + s.place[c].row * q.columns + s.place[c].column;
    for (int j = 0; j < kChunk; ++j) {
      const bool exists = j < s.place[c].count;
      s.exists[c * kChunk + j] = exists;
      s.tile.before[c * kChunk + j] = exists ? from[j] : typename Type::Bits{0};
    }
  }
  for (int i = 0; i < chunks * kChunk; ++i) s.tile.x[i] = Type::value(s.tile.before[i]);
}

template <class Type>
UnitRange block_range(const Scratch<Type>& s, int first, int count) {
  UnitRange range;
  for (int i = first; i < first + count; ++i) {
    const float x = static_cast<float>(s.tile.x[i]);
    const bool finite = is_finite(x);
    range.nonfinite |= !finite;
    const float a = finite ? magnitude(x) : 0.0f;
    range.amax = a > range.amax ? a : range.amax;
    range.low = finite && x < range.low ? x : range.low;
    range.high = finite && x > range.high ? x : range.high;
  }
  return range;
}

template <class Type>
void find_scales(const QuantizeArguments& q, int chunks, Scratch<Type>& s) {
  const FormatArguments& f = q.format;
  const float tensor_amax = f.kind == FormatKind::kNvfp4 ? q.ranges[0].amax : 0.0f;
  const int span = f.granularity == Granularity::kBlock ? f.block / kChunk : 1;
  for (int c = 0; c < chunks; c += span) {
    const UnitRange range = f.granularity == Granularity::kBlock ? block_range(s, c * kChunk, span * kChunk)
                            : f.kind == FormatKind::kCast        ? UnitRange{1, 0, 0, 0}
                                                          : q.ranges[unit_index(q, s.place[c].row, s.place[c].column)];
    const Scale scale = format_scale(f, range.amax, tensor_amax, range.low, range.high);
    for (int k = c; k < c + span; ++k) {
      s.scale[k] = scale;
      s.poisoned[k] = f.nan_spreads && range.nonfinite;
    }
  }
}

template <class Type>
void quantize_tile(const QuantizeArguments& q, uint64_t key, int64_t first_chunk, int chunks, Scratch<Type>& s) {
  Tile<Type>& t = s.tile;
  for (int c = 0; c < chunks; ++c) {
    const ChunkPlace& place = s.place[c];
    PhiloxWords words[2] = {};
    if (q.format.stochastic) {
      words[0] = element_words(q.control, key, 2 * static_cast<uint64_t>(first_chunk + c), kRoundingStream);
      words[1] = element_words(q.control, key, 2 * static_cast<uint64_t>(first_chunk + c) + 1, kRoundingStream);
    }
    for (int j = 0; j < kChunk; ++j) {
      const int i = c * kChunk + j;
      const float x = static_cast<float>(t.x[i]);
      bool saturated = false;
      float y = is_finite(x) ? quantize_value(q.format, s.scale[c], x, words[j >> 2].word[j & 3], saturated) : x;
      y = s.poisoned[c] ? bits_float(Float32::kNan) : y;
      const bool selected = s.exists[i] && extent_selects(q.extent, q.mask_key, place.row, place.column + j);
      t.selected[i] = selected;
      t.saturated[i] = selected && saturated;
      const bool same =
          static_cast<typename Type::Value>(y) == t.x[i] || !selected || (!is_finite(x) && !s.poisoned[c]);
      t.after[i] = same ? t.before[i] : Type::round(static_cast<typename Type::Value>(y));
      t.y[i] = Type::value(t.after[i]);
    }
  }
}

template <class Type>
void scatter(const QuantizeArguments& q, int chunks, const Scratch<Type>& s, typename Type::Bits* data) {
  for (int c = 0; c < chunks; ++c) {
    auto* to = data + s.place[c].row * q.columns + s.place[c].column;
    for (int j = 0; j < s.place[c].count; ++j) to[j] = s.tile.after[c * kChunk + j];
  }
}

template <class Type>
void quantize_segments(const QuantizeArguments& q, const Traversal& traversal, int64_t first, int64_t last, void* data,
                       SegmentPartial* partials) {
  Scratch<Type> s;
  Lanes<typename Type::Value> lanes;
  auto* values = static_cast<typename Type::Bits*>(data);
  const uint64_t key = q.noise_key;
  for (int64_t segment = first; segment < last; ++segment) {
    for (int64_t tile = segment; tile < traversal.tiles; tile += traversal.segments) {
      const int64_t chunk = tile * kTileChunks, left = traversal.chunks - chunk;
      const int chunks = static_cast<int>(left < kTileChunks ? left : kTileChunks);
      gather(q, values, chunk, chunks, s);
      find_scales(q, chunks, s);
      quantize_tile(q, key, chunk, chunks, s);
      scatter(q, chunks, s, values);
      if (partials == nullptr) continue;
      add_tile(s.tile, chunks * kChunk, chunk, tile == segment, lanes);
    }
    if (partials != nullptr && segment < traversal.tiles) write_partial(lanes, partials[segment]);
  }
}

template <class Type>
void merge_ranges(const typename Type::Bits* data, int64_t count, UnitRange& range) {
  float amax = range.amax, low = range.low, high = range.high;
  uint32_t nonfinite = range.nonfinite;
  for (int64_t i = 0; i < count; ++i) {
    const float x = static_cast<float>(Type::value(data[i]));
    const bool finite = is_finite(x);
    nonfinite |= finite ? 0u : 1u;
    const float a = finite ? magnitude(x) : 0.0f, clean = finite ? x : 0.0f;
    amax = a > amax ? a : amax;
    low = clean < low ? clean : low;
    high = clean > high ? clean : high;
  }
  range = {amax, low, high, nonfinite};
}

template <class Type>
void ranges_of_tiles(const void* data, int64_t rows, int64_t columns, int64_t first, int64_t last, UnitRange* ranges) {
  const auto* values = static_cast<const typename Type::Bits*>(data);
  const int64_t across = (columns + kFormatTile - 1) / kFormatTile;
  for (int64_t row = first * kFormatTile; row < last * kFormatTile && row < rows; ++row) {
    for (int64_t tile = 0; tile < across; ++tile) {
      const int64_t column = tile * kFormatTile, left = columns - column;
      UnitRange& range = ranges[(row / kFormatTile) * across + tile];
      if (row % kFormatTile == 0) range = {};
      merge_ranges<Type>(values + row * columns + column, left < kFormatTile ? left : kFormatTile, range);
    }
  }
}

template <class Type>
void ranges_of_rows(const void* data, int64_t columns, int64_t first, int64_t last, UnitRange* ranges) {
  for (int64_t row = first; row < last; ++row) {
    ranges[row] = {};
    merge_ranges<Type>(static_cast<const typename Type::Bits*>(data) + row * columns, columns, ranges[row]);
  }
}

}  // namespace

namespace FAULTLINE_ISA {

void quantize(const QuantizeArguments& q, const Traversal& traversal, int64_t first, int64_t last, void* data,
              SegmentPartial* partials) {
  dispatch_dtype(q.dtype,
                 [&](auto type) { quantize_segments<decltype(type)>(q, traversal, first, last, data, partials); });
}

void row_ranges(Dtype dtype, const void* data, int64_t columns, int64_t first, int64_t last, UnitRange* ranges) {
  dispatch_dtype(dtype, [&](auto type) { ranges_of_rows<decltype(type)>(data, columns, first, last, ranges); });
}

void tile_ranges(Dtype dtype, const void* data, int64_t rows, int64_t columns, int64_t first, int64_t last,
                 UnitRange* ranges) {
  dispatch_dtype(dtype, [&](auto type) { ranges_of_tiles<decltype(type)>(data, rows, columns, first, last, ranges); });
}

}  // namespace FAULTLINE_ISA
}  // namespace faultline::numeric::cpu
