#include "numeric/portable/statistics.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "numeric/portable/lanes.h"

namespace faultline::numeric::portable {
namespace {

constexpr int64_t kElements = int64_t{1} << 18;  // of a piece

// The sums over a number of elements, as fp64 lanes of any shape. Counts and maxima have no order.
struct LaneSums {
  at::Tensor count, max, sum_abs, sum, sum_squares;

  static LaneSums zeros(at::IntArrayRef sizes, const at::Device& device) {
    const auto zero = [&] { return at::zeros(sizes, at::TensorOptions().dtype(at::kDouble).device(device)); };
    return {zero(), zero(), zero(), zero(), zero()};
  }
  LaneSums narrowed(int64_t dimension, int64_t first, int64_t size) const {
    const auto part = [&](const at::Tensor& x) { return x.narrow(dimension, first, size); };
    return {part(count), part(max), part(sum_abs), part(sum), part(sum_squares)};
  }
  // Elements of any dtype in the lanes' shape. A square of fp32 is exact in fp64: nothing needs to be fused.
  void add(const at::Tensor& values) const {
    const at::Tensor wide = values.to(at::kDouble), finite = wide.abs().lt(INFINITY);
    const at::Tensor x = at::where(finite, wide, at::zeros_like(wide)), a = x.abs();
    count.add_(finite.to(at::kDouble));
    max.copy_(at::maximum(max, a));
    sum_abs.add_(a);
    sum.add_(x);
    sum_squares.add_(x * x);
  }
  void add(const LaneSums& other) const {
    count.add_(other.count);
    max.copy_(at::maximum(max, other.max));
    sum_abs.add_(other.sum_abs);
    sum.add_(other.sum);
    sum_squares.add_(other.sum_squares);
  }
};

at::Tensor reference_value(Reference kind, const LaneSums& s) {
  const at::Tensor zero = at::zeros_like(s.max);
  if (kind == Reference::kMaxAbs) return s.max.to(at::kFloat);
  if (kind == Reference::kMeanAbs) return at::where(s.count.gt(0), s.sum_abs / s.count, zero).to(at::kFloat);
  const at::Tensor mean = s.sum / s.count, variance = s.sum_squares / s.count - mean * mean;
  return at::where(variance.gt(0), variance, zero).sqrt().to(at::kFloat);
}

template <class Fold>
LaneSums folded(const LaneSums& s, const Fold& fold) {
  return {fold(s.count), s.max.amax(-1), fold(s.sum_abs), fold(s.sum), fold(s.sum_squares)};
}

void rows_reference(const ReferenceArguments& r, const at::Tensor& x, const at::Tensor& result) {
  const int64_t rows = x.size(0), columns = x.size(1), at_once = std::max<int64_t>(1, kElements / kRowLanes);
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    const LaneSums sums = LaneSums::zeros({count, kRowLanes}, x.device());
    for (int64_t column = 0; column < columns; column += kRowLanes) {
      const int64_t width = std::min<int64_t>(kRowLanes, columns - column);
      sums.narrowed(1, 0, width).add(x.narrow(0, first, count).narrow(1, column, width));
    }
    const LaneSums total = folded(sums, [](const at::Tensor& lanes) { return add_by_halving(add_chunk_lanes(lanes)); });
    result.narrow(0, first, count).copy_(reference_value(r.kind, total));
  }
}

void columns_reference(const ReferenceArguments& r, const at::Tensor& x, const at::Tensor& result) {
  const int64_t rows = x.size(0), columns = x.size(1), at_once = std::min<int64_t>(columns, kElements);
  const int64_t groups_at_once = std::max<int64_t>(1, kElements / at_once) * kRowGroup;
  for (int64_t column = 0; column < columns; column += at_once) {
    const int64_t width = std::min(at_once, columns - column);
    const LaneSums total = LaneSums::zeros({width}, x.device());
    for (int64_t first = 0; first < rows; first += groups_at_once) {  // that many rows: some groups side by side
      const at::Tensor part = x.narrow(0, first, std::min(groups_at_once, rows - first)).narrow(1, column, width);
      const int64_t groups = (part.size(0) + kRowGroup - 1) / kRowGroup;
      const LaneSums sums = LaneSums::zeros({groups, width}, x.device());
      for (int64_t row = 0; row < std::min<int64_t>(kRowGroup, part.size(0)); ++row) {
        const at::Tensor values = part.slice(0, row, c10::nullopt, kRowGroup);
        sums.narrowed(0, 0, values.size(0)).add(values);
      }
      for (int64_t group = 0; group < groups; ++group) {
        const LaneSums one = sums.narrowed(0, group, 1);
        const auto row = [](const at::Tensor& lanes) { return lanes.select(0, 0); };
        total.add(LaneSums{row(one.count), row(one.max), row(one.sum_abs), row(one.sum), row(one.sum_squares)});
      }
    }
    result.narrow(0, column, width).copy_(reference_value(r.kind, total));
  }
}

// The traversal's lanes, some segments at a time; a segment takes a tile of every wave.
void tensor_reference(const ReferenceArguments& r, const at::Tensor& flat, const at::Tensor& result) {
  const Traversal traversal = make_traversal((r.elements + kChunk - 1) / kChunk);
  const LaneSums segments = LaneSums::zeros({traversal.segments}, flat.device());
  const int64_t at_once = kElements / kTile;
  for (int64_t segment = 0; segment < traversal.segments; segment += at_once) {
    const int64_t count = std::min(at_once, traversal.segments - segment);
    const LaneSums sums = LaneSums::zeros({count * kTile}, flat.device());
    for (int64_t tile = segment; tile < traversal.tiles; tile += traversal.segments) {
      const int64_t size = std::min(count * kTile, r.elements - tile * kTile);
      sums.narrowed(0, 0, size).add(flat.narrow(0, tile * kTile, size));
    }
    const auto lanes = [&](const at::Tensor& sum) { return sum.view({count, kTile}); };
    const LaneSums total = folded(
        LaneSums{lanes(sums.count), lanes(sums.max), lanes(sums.sum_abs), lanes(sums.sum), lanes(sums.sum_squares)},
        [](const at::Tensor& sum) { return add_tree(add_chunk_lanes(sum)); });
    segments.narrowed(0, segment, count).add(total);
  }
  // 256 lanes of segments, each in order, then the tree.
  const LaneSums lanes = LaneSums::zeros({kTileChunks}, flat.device());
  for (int64_t first = 0; first < traversal.segments; first += kTileChunks) {
    const int64_t count = std::min<int64_t>(kTileChunks, traversal.segments - first);
    lanes.narrowed(0, 0, count).add(segments.narrowed(0, first, count));
  }
  const LaneSums wide{lanes.count.unsqueeze(0), lanes.max.unsqueeze(0), lanes.sum_abs.unsqueeze(0),
                      lanes.sum.unsqueeze(0), lanes.sum_squares.unsqueeze(0)};
  result.copy_(reference_value(r.kind, folded(wide, [](const at::Tensor& sum) { return add_tree(sum); })));
}

}  // namespace

at::Tensor reference(const ReferenceArguments& r, Axis axis, const at::Tensor& x) {
  const int64_t rows = r.elements / r.columns;
  const int64_t count = axis == Axis::kToken ? rows : axis == Axis::kChannel ? r.columns : 1;
  const at::Tensor result = at::empty({count}, x.options().dtype(at::kFloat)), matrix = x.view({rows, r.columns});
  if (axis == Axis::kToken) rows_reference(r, matrix, result);
  if (axis == Axis::kChannel) columns_reference(r, matrix, result);
  if (axis == Axis::kTensor) tensor_reference(r, x.view({-1}), result);
  return result;
}

}  // namespace faultline::numeric::portable
