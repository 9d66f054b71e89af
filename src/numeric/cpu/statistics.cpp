// Row, channel and tensor statistics on a CPU, in the order that statistics.h fixes.
#include "numeric/statistics.h"

#include "numeric/cpu/kernels.h"

namespace faultline::numeric::cpu {
namespace {

struct Sums {
  alignas(64) double count[kTile];
  alignas(64) double max[kTile];
  alignas(64) double sum_abs[kTile];
  alignas(64) double sum[kTile];
  alignas(64) double sum_squares[kTile];

  void clear(int lanes) {
    for (int i = 0; i < lanes; ++i) count[i] = max[i] = sum_abs[i] = sum[i] = sum_squares[i] = 0;
  }
};

// Element i goes to lane i of `sums`.
template <class Type>
void add_elements(const typename Type::Bits* data, int count, Sums& sums) {
#pragma GCC ivdep
  for (int i = 0; i < count; ++i) {
    const auto value = Type::value(data[i]);
    const bool finite = is_finite(value);
    const double x = finite ? static_cast<double>(value) : 0.0;
    const double a = magnitude(x);
    sums.count[i] += finite ? 1.0 : 0.0;
    sums.max[i] = a > sums.max[i] ? a : sums.max[i];
    sums.sum_abs[i] += a;
    sums.sum[i] += x;
    sums.sum_squares[i] = fused_multiply_add(x, x, sums.sum_squares[i]);
  }
}

double fold_row(const double* lane) {
  double value[32];
  for (int chunk = 0; chunk < 32; ++chunk) value[chunk] = add_chunk_lanes(lane + chunk * kChunk);
  for (int offset = 16; offset > 0; offset /= 2) {
    for (int i = 0; i < offset; ++i) value[i] += value[i + offset];
  }
  return value[0];
}

double largest(const double* lane, int count) {
  double max = 0;
  for (int i = 0; i < count; ++i) max = lane[i] > max ? lane[i] : max;
  return max;
}

template <class Type>
void reference_of_rows(const ReferenceArguments& r, const void* data, int64_t first, int64_t last, float* reference) {
  Sums sums;
  for (int64_t row = first; row < last; ++row) {
    sums.clear(kRowLanes);
    const auto* values = static_cast<const typename Type::Bits*>(data) + row * r.columns;
    for (int64_t column = 0; column < r.columns; column += kRowLanes) {
      const int64_t left = r.columns - column;
      add_elements<Type>(values + column, static_cast<int>(left < kRowLanes ? left : kRowLanes), sums);
    }
    reference[row] = reference_value(r.kind, fold_row(sums.count), largest(sums.max, kRowLanes), fold_row(sums.sum_abs),
                                     fold_row(sums.sum), fold_row(sums.sum_squares));
  }
}

// Columns [first, last), at most a tile of them at a time; rows in groups whose sums are added in order.
template <class Type>
void reference_of_columns(const ReferenceArguments& r, const void* data, int64_t first, int64_t last,
                          float* reference) {
  Sums total, group;
  const int64_t rows = r.elements / r.columns;
  for (int64_t column = first; column < last; column += kTile) {
    const int count = static_cast<int>(last - column < kTile ? last - column : kTile);
    total.clear(count);
    for (int64_t row = 0; row < rows; row += kRowGroup) {
      group.clear(count);
      for (int64_t k = row; k < row + kRowGroup && k < rows; ++k) {
        add_elements<Type>(static_cast<const typename Type::Bits*>(data) + k * r.columns + column, count, group);
      }
      for (int i = 0; i < count; ++i) {
        total.count[i] += group.count[i];
        total.max[i] = group.max[i] > total.max[i] ? group.max[i] : total.max[i];
        total.sum_abs[i] += group.sum_abs[i];
        total.sum[i] += group.sum[i];
        total.sum_squares[i] += group.sum_squares[i];
      }
    }
    for (int i = 0; i < count; ++i) {
      reference[column + i] =
          reference_value(r.kind, total.count[i], total.max[i], total.sum_abs[i], total.sum[i], total.sum_squares[i]);
    }
  }
}

double fold_tile(const double* lane) {
  double value[kTileChunks];
  for (int chunk = 0; chunk < kTileChunks; ++chunk) value[chunk] = add_chunk_lanes(lane + chunk * kChunk);
  return add_tree(value);
}

template <class Type>
void sums_of_segments(const ReferenceArguments& r, const Traversal& traversal, int64_t first, int64_t last,
                      const void* data, double* out) {
  Sums sums;
  for (int64_t segment = first; segment < last; ++segment) {
    sums.clear(kTile);
    for (int64_t tile = segment; tile < traversal.tiles; tile += traversal.segments) {
      const int64_t left = r.elements - tile * kTile;
      add_elements<Type>(static_cast<const typename Type::Bits*>(data) + tile * kTile,
                         static_cast<int>(left < kTile ? left : kTile), sums);
    }
    double* row = out + segment * kSumColumns;
    row[kSumCount] = fold_tile(sums.count);
    row[kSumMax] = largest(sums.max, kTile);
    row[kSumAbs] = fold_tile(sums.sum_abs);
    row[kSum] = fold_tile(sums.sum);
    row[kSumSquares] = fold_tile(sums.sum_squares);
  }
}

}  // namespace

namespace FAULTLINE_ISA {

void row_reference(const ReferenceArguments& r, const void* data, int64_t first, int64_t last, float* reference) {
  dispatch_dtype(r.dtype, [&](auto type) { reference_of_rows<decltype(type)>(r, data, first, last, reference); });
}

void column_reference(const ReferenceArguments& r, const void* data, int64_t first, int64_t last, float* reference) {
  dispatch_dtype(r.dtype, [&](auto type) { reference_of_columns<decltype(type)>(r, data, first, last, reference); });
}

void segment_sums(const ReferenceArguments& r, const Traversal& traversal, int64_t first, int64_t last,
                  const void* data, double* sums) {
  dispatch_dtype(r.dtype, [&](auto type) { sums_of_segments<decltype(type)>(r, traversal, first, last, data, sums); });
}

}  // namespace FAULTLINE_ISA
}  // namespace faultline::numeric::cpu
