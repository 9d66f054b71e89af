// What a quantisation kernel is told. Blocks never cross rows: the chunks of a row are padded to whole blocks, so a
// block is block/8 neighbouring chunks of the traversal, and a short last block is filled with zeros.
#pragma once

#include "numeric/arguments.h"
#include "numeric/formats.h"
#include "numeric/ledger.h"

namespace faultline::numeric {

struct UnitRange {
  float amax = 0;
  float low = 0;
  float high = 0;
  uint32_t nonfinite = 0;  // 1: the unit holds a NaN or an infinity
};

struct QuantizeArguments {
  FormatArguments format;
  Dtype dtype = Dtype::kFloat32;
  int64_t rows = 0;
  int64_t columns = 1;
  int64_t chunks_per_row = 1;
  Control control;
  uint64_t noise_key = 0;
  uint64_t mask_key = 0;
  Extent extent;
  LifetimeArguments lifetime;
  const UnitRange* ranges = nullptr;  // one a row, tile or tensor; null for blocks
  const UnitRange* tensor = nullptr;  // second_level: of the whole tensor
};

inline int64_t padded_chunks(int64_t columns, int32_t block) {
  const int64_t blocks = (columns + block - 1) / block;
  return blocks * (block / kChunk);
}

inline bool needs_ranges(const FormatArguments& format) { return has_units(format) || format.second_level; }

FL_HD int64_t tiles_across(const QuantizeArguments& q) { return (q.columns + q.format.block - 1) / q.format.block; }
FL_HD int64_t tiles_down(const QuantizeArguments& q) { return (q.rows + q.format.tile_rows - 1) / q.format.tile_rows; }

FL_HD int64_t unit_index(const QuantizeArguments& q, int64_t row, int64_t column) {
  switch (q.format.granularity) {
    case Granularity::kRow: return row;
    case Granularity::kTile: return (row / q.format.tile_rows) * tiles_across(q) + column / q.format.block;
    default: return 0;
  }
}

// The number of the unit whose scale a chunk of the padded traversal takes, and whether the unit begins with it.
FL_HD int64_t scale_number(const QuantizeArguments& q, int64_t chunk, int64_t row, int64_t column) {
  return q.format.granularity == Granularity::kBlock ? chunk / (q.format.block / kChunk) : unit_index(q, row, column);
}
FL_HD bool begins_unit(const QuantizeArguments& q, int64_t chunk, int64_t row, int64_t column) {
  switch (q.format.granularity) {
    case Granularity::kBlock: return chunk % (q.format.block / kChunk) == 0;
    case Granularity::kRow: return column == 0;
    case Granularity::kTile: return row % q.format.tile_rows == 0 && column % q.format.block == 0;
    default: return chunk == 0;
  }
}

}  // namespace faultline::numeric
