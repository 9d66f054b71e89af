// Number formats on a CPU: a tile of padded row chunks is gathered, rotated where the format asks for it, its blocks'
// scales are found, then one loop over the tile quantises and dequantises. The arithmetic is formats.h's.
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
  alignas(64) float value[kTile];             // what is quantised: x, or x rotated; zero where it is not finite
  alignas(64) float result[kTile];            // and what becomes of it
  alignas(64) Scale scale[kTileChunks][2];    // of each four elements
  alignas(64) uint8_t poisoned[kTileChunks];  // nonfinite: spec
  alignas(64) uint8_t struck[kTile];          // codes changed by a fault
  alignas(64) float back[kTileChunks][2];     // scale's `back`, after a fault of the scale
  uint64_t struck_scales;
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

// Of one chunk: eight elements.
void merge_chunk(const float* value, UnitRange& range) {
  float amax = range.amax, low = range.low, high = range.high;
  for (int j = 0; j < kChunk; ++j) {
    const float x = value[j], a = magnitude(x);
    amax = a > amax ? a : amax;
    low = x < low ? x : low;
    high = x > high ? x : high;
  }
  range.amax = amax, range.low = low, range.high = high;
}

float largest_of_four(const float* value) {
  float amax = 0;
  for (int j = 0; j < 4; ++j) amax = magnitude(value[j]) > amax ? magnitude(value[j]) : amax;
  return amax;
}

// In place; what leaves fp32's range on the way counts as zero.
void rotate(float* x, bool back) {
  float half[2][kChunk];
  for (int i = 0; i < kRotation; ++i) half[i / kChunk][i % kChunk] = back ? x[i] : rotation_sign(x[i], i);
  rotate_eight(half[0]);
  rotate_eight(half[1]);
  for (int i = 0; i < kRotation; ++i) {
    const bool second = i >= kChunk;
    const float y = rotate_across(half[second][i % kChunk], half[!second][i % kChunk], second);
    x[i] = back ? rotation_sign(y, i) : is_finite(y) ? y : 0.0f;
  }
}

template <class Type>
void find_values(const QuantizeArguments& q, int chunks, Scratch<Type>& s) {
  for (int i = 0; i < chunks * kChunk; ++i) {
    const float x = static_cast<float>(s.tile.x[i]);
    s.value[i] = is_finite(x) ? x : 0.0f;
  }
  if (!q.format.hadamard) return;
  for (int i = 0; i < chunks * kChunk; i += kRotation) rotate(s.value + i, false);
}

// four_over_six: chunks are added as a GPU's shuffles add them.
float block_error(const FormatArguments& f, const Scale& scale, const float* value, int chunks) {
  float sum[32];
  for (int c = 0; c < chunks; ++c) sum[c] = squared_error(f, scale, value + c * kChunk);
  for (int step = 1; step < chunks; step *= 2) {
    for (int c = 0; c < chunks; c += 2 * step) sum[c] += sum[c + step];
  }
  return sum[0];
}

template <class Type>
void find_scales(const QuantizeArguments& q, const TensorScale& tensor, uint64_t key, int64_t first_chunk, int chunks,
                 Scratch<Type>& s) {
  const FormatArguments& f = q.format;
  const bool blocks = f.granularity == Granularity::kBlock;
  const int span = blocks ? f.block / kChunk : 1;
  for (int c = 0; c < chunks; c += span) {
    UnitRange range{1, 0, 0, 0};
    if (blocks) {
      range = {};
      for (int k = c; k < c + span; ++k) merge_chunk(s.value + k * kChunk, range);
      for (int i = c * kChunk; f.nan_spreads && i < (c + span) * kChunk; ++i)
        range.nonfinite |= !is_finite(static_cast<float>(s.tile.x[i]));
    } else if (f.scale != ScaleRule::kNone) {
      range = q.ranges[unit_index(q, s.place[c].row, s.place[c].column)];
    }
    Scale scale = format_scale(f, range.amax, tensor, range.low, range.high);
    if (f.four_over_six) {
      const Scale four = format_scale(f, range.amax, tensor, range.low, range.high, true);
      const float* value = s.value + c * kChunk;
      if (block_error(f, four, value, span) < block_error(f, scale, value, span)) scale = four;
    }
    Scale after = scale;
    if (f.faulty == Encoded::kScales) {
      const int64_t chunk = first_chunk + c;
      const auto number = static_cast<uint64_t>(scale_number(q, chunk, s.place[c].row, s.place[c].column));
      bool changed = false;
      after = struck_scale(f, scale, tensor, element_words(q.control, key, number, kScaleStream).word[0], changed);
      s.struck_scales += changed && s.place[c].count > 0 && begins_unit(q, chunk, s.place[c].row, s.place[c].column);
    }
    for (int k = c; k < c + span; ++k) {
      const float* value = s.value + k * kChunk;
      if (f.scale == ScaleRule::kHierarchy) {
        const float low = largest_of_four(value), high = largest_of_four(value + 4), both = low > high ? low : high;
        s.scale[k][0] = local_scale(f, scale, both, low), s.scale[k][1] = local_scale(f, scale, both, high);
        for (int half = 0; half < 2; ++half) s.back[k][half] = after.back * (s.scale[k][half].back / scale.back);
      } else {
        s.scale[k][0] = s.scale[k][1] = scale;
        s.back[k][0] = s.back[k][1] = after.back;
      }
      s.poisoned[k] = f.nan_spreads && range.nonfinite;
    }
  }
}

template <class Type>
void find_results(const QuantizeArguments& q, uint64_t key, int64_t first_chunk, int chunks, Scratch<Type>& s) {
  for (int c = 0; c < chunks; ++c) {
    PhiloxWords words[2] = {};
    if (is_stochastic(q.format)) {
      words[0] = element_words(q.control, key, 2 * static_cast<uint64_t>(first_chunk + c), kRoundingStream);
      words[1] = element_words(q.control, key, 2 * static_cast<uint64_t>(first_chunk + c) + 1, kRoundingStream);
    }
    PhiloxWords strikes[2] = {};
    if (q.format.faulty == Encoded::kCodes) {
      strikes[0] = element_words(q.control, key, 2 * static_cast<uint64_t>(first_chunk + c), kCodeStream);
      strikes[1] = element_words(q.control, key, 2 * static_cast<uint64_t>(first_chunk + c) + 1, kCodeStream);
    }
    for (int j = 0; j < kChunk; ++j) {
      const int i = c * kChunk + j;
      const Scale& scale = s.scale[c][j >> 2];
      const uint32_t word = words[j >> 2].word[j & 3];
      bool saturated = false, struck = false;
      s.result[i] = q.format.faulty == Encoded::kNothing
                        ? quantize_value(q.format, scale, s.value[i], word, saturated)
                        : struck_quantize(q.format, scale, s.back[c][j >> 2], s.value[i], word,
                                          strikes[j >> 2].word[j & 3], saturated, struck);
      s.tile.saturated[i] = saturated;
      s.struck[i] = struck;
    }
  }
  if (!q.format.hadamard) return;
  for (int i = 0; i < chunks * kChunk; i += kRotation) rotate(s.result + i, true);
}

template <class Type>
void select_results(const QuantizeArguments& q, int chunks, Scratch<Type>& s) {
  Tile<Type>& t = s.tile;
  for (int c = 0; c < chunks; ++c) {
    const ChunkPlace& place = s.place[c];
    for (int j = 0; j < kChunk; ++j) {
      const int i = c * kChunk + j;
      const bool finite = is_finite(static_cast<float>(t.x[i]));
      const float y = s.poisoned[c] ? bits_float(Float32::kNan) : finite ? s.result[i] : static_cast<float>(t.x[i]);
      const bool selected = s.exists[i] && extent_selects(q.extent, q.mask_key, place.row, place.column + j);
      t.selected[i] = selected;
      t.saturated[i] = selected && finite && t.saturated[i];
      s.struck[i] = selected && finite && s.struck[i];
      const bool same = static_cast<typename Type::Value>(y) == t.x[i] || !selected || (!finite && !s.poisoned[c]);
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
  const TensorScale tensor =
      tensor_scale(q.format, q.format.second_level && q.tensor != nullptr ? q.tensor->amax : 0.0f);
  for (int64_t segment = first; segment < last; ++segment) {
    uint64_t struck = 0;
    s.struck_scales = 0;
    for (int64_t tile = segment; tile < traversal.tiles; tile += traversal.segments) {
      const int64_t chunk = tile * kTileChunks, left = traversal.chunks - chunk;
      const int chunks = static_cast<int>(left < kTileChunks ? left : kTileChunks);
      gather(q, values, chunk, chunks, s);
      find_values(q, chunks, s);
      find_scales(q, tensor, key, chunk, chunks, s);
      find_results(q, key, chunk, chunks, s);
      select_results(q, chunks, s);
      scatter(q, chunks, s, values);
      if (partials == nullptr) continue;
      add_tile(s.tile, chunks * kChunk, chunk, tile == segment, lanes);
      for (int i = 0; q.format.faulty == Encoded::kCodes && i < chunks * kChunk; ++i) struck += s.struck[i];
    }
    if (partials == nullptr || segment >= traversal.tiles) continue;
    write_partial(lanes, partials[segment]);
    partials[segment].struck = struck + s.struck_scales;
  }
}

template <class Type>
void merge_ranges(const QuantizeArguments& q, const typename Type::Bits* data, int64_t count, UnitRange& range) {
  uint32_t nonfinite = range.nonfinite;
  const int64_t group = q.format.hadamard ? kRotation : kChunk;
  float value[kRotation];
  for (int64_t first = 0; first < count; first += group) {
    for (int64_t j = 0; j < group; ++j) {
      const float x = first + j < count ? static_cast<float>(Type::value(data[first + j])) : 0.0f;
      nonfinite |= is_finite(x) ? 0u : 1u;
      value[j] = is_finite(x) ? x : 0.0f;
    }
    if (q.format.hadamard) rotate(value, false);
    for (int64_t j = 0; j < group; j += kChunk) merge_chunk(value + j, range);
  }
  range.nonfinite = nonfinite;
}

template <class Type>
void ranges_of_tiles(const QuantizeArguments& q, const void* data, int64_t first, int64_t last, UnitRange* ranges) {
  const auto* values = static_cast<const typename Type::Bits*>(data);
  const int64_t across = tiles_across(q), high = q.format.tile_rows, wide = q.format.block;
  for (int64_t row = first * high; row < last * high && row < q.rows; ++row) {
    for (int64_t tile = 0; tile < across; ++tile) {
      const int64_t column = tile * wide, left = q.columns - column;
      UnitRange& range = ranges[(row / high) * across + tile];
      if (row % high == 0) range = {};
      merge_ranges<Type>(q, values + row * q.columns + column, left < wide ? left : wide, range);
    }
  }
}

template <class Type>
void ranges_of_rows(const QuantizeArguments& q, const void* data, int64_t first, int64_t last, UnitRange* ranges) {
  for (int64_t row = first; row < last; ++row) {
    ranges[row] = {};
    merge_ranges<Type>(q, static_cast<const typename Type::Bits*>(data) + row * q.columns, q.columns, ranges[row]);
  }
}

}  // namespace

namespace FAULTLINE_ISA {

void quantize(const QuantizeArguments& q, const Traversal& traversal, int64_t first, int64_t last, void* data,
              SegmentPartial* partials) {
  dispatch_dtype(q.dtype,
                 [&](auto type) { quantize_segments<decltype(type)>(q, traversal, first, last, data, partials); });
}

void row_ranges(const QuantizeArguments& q, const void* data, int64_t first, int64_t last, UnitRange* ranges) {
  dispatch_dtype(q.dtype, [&](auto type) { ranges_of_rows<decltype(type)>(q, data, first, last, ranges); });
}

void tile_ranges(const QuantizeArguments& q, const void* data, int64_t first, int64_t last, UnitRange* ranges) {
  dispatch_dtype(q.dtype, [&](auto type) { ranges_of_tiles<decltype(type)>(q, data, first, last, ranges); });
}

}  // namespace FAULTLINE_ISA
}  // namespace faultline::numeric::cpu
