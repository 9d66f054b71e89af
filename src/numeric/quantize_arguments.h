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
  const UnitRange* ranges = nullptr;  // per row, tile or tensor; for nvfp4 the tensor's; null for pure block formats
};

inline int64_t padded_chunks(int64_t columns, int32_t block) {
  const int64_t blocks = (columns + block - 1) / block;
  return blocks * (block / kChunk);
}

FL_HD int64_t unit_index(const QuantizeArguments& q, int64_t row, int64_t column) {
  switch (q.format.granularity) {
    case Granularity::kRow: return row;
    case Granularity::kTile:
      return (row / kFormatTile) * ((q.columns + kFormatTile - 1) / kFormatTile) + column / kFormatTile;
    default: return 0;
  }
}

}  // namespace faultline::numeric
