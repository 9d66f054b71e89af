// apply_ on a CPU: statistics first where the kind needs them, then one parallel pass over the segments.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "numeric/apply_device.h"
#include "numeric/arithmetic.h"
#include "numeric/cpu/kernels.h"

namespace faultline::numeric {
namespace {

template <class Function>
void over_segments(const Traversal& traversal, Function&& function) {
  const int64_t grain = std::max<int64_t>(
      1, 16 * traversal.segments / std::max<int64_t>(1, traversal.tiles));  // about 32k elements a task
  at::parallel_for(0, traversal.segments, grain, function);
}

at::Tensor cpu_reference(const FaultArguments& a, const at::Tensor& x) {
  const ReferenceArguments r{a.dtype, a.reference_kind, a.elements, a.columns};
  const auto& kernels = cpu::kernels();
  const int64_t rows = a.elements / a.columns;
  const int64_t count = a.axis == Axis::kToken ? rows : a.axis == Axis::kChannel ? a.columns : 1;
  at::Tensor reference = at::empty({count}, at::kFloat);
  float* out = reference.mutable_data_ptr<float>();
  const void* data = x.const_data_ptr();
  if (a.axis == Axis::kToken) {
    at::parallel_for(0, rows, std::max<int64_t>(1, 32768 / a.columns),
                     [&](int64_t first, int64_t last) { kernels.row_reference(r, data, first, last, out); });
  } else if (a.axis == Axis::kChannel) {
    at::parallel_for(0, a.columns, std::max<int64_t>(64, 32768 / rows),
                     [&](int64_t first, int64_t last) { kernels.column_reference(r, data, first, last, out); });
  } else {
    const Traversal traversal = make_traversal((a.elements + kChunk - 1) / kChunk);
    std::vector<double> sums(static_cast<std::size_t>(traversal.segments) * kSumColumns);
    over_segments(traversal, [&](int64_t first, int64_t last) {
      kernels.segment_sums(r, traversal, first, last, data, sums.data());
    });
    double total[kSumColumns] = {};
    for (int column = 0; column < kSumColumns; ++column) {
      double value[kTileChunks] = {};
      for (int64_t segment = 0; segment < traversal.segments; ++segment) {
        const double part = sums[static_cast<std::size_t>(segment) * kSumColumns + static_cast<std::size_t>(column)];
        value[segment % kTileChunks] += part;
        total[kSumMax] = column == kSumMax ? std::max(total[kSumMax], part) : total[kSumMax];
      }
      if (column != kSumMax) total[column] = add_tree(value);
    }
    *out = reference_value(r.kind, total[kSumCount], total[kSumMax], total[kSumAbs], total[kSum], total[kSumSquares]);
  }
  return reference;
}

struct Ranges {
  std::vector<UnitRange> units;
  UnitRange tensor;
};

Ranges cpu_ranges(const QuantizeArguments& q, const at::Tensor& x) {
  const auto& kernels = cpu::kernels();
  const void* data = x.const_data_ptr();
  Ranges ranges;
  if (q.format.granularity == Granularity::kTile) {
    const int64_t down = tiles_down(q), grain = std::max<int64_t>(1, 32768 / (q.columns * q.format.tile_rows));
    ranges.units.resize(static_cast<std::size_t>(down * tiles_across(q)));
    at::parallel_for(0, down, grain, [&](int64_t first, int64_t last) {
      kernels.tile_ranges(q, data, first, last, ranges.units.data());
    });
  } else {
    ranges.units.resize(static_cast<std::size_t>(q.rows));
    at::parallel_for(0, q.rows, std::max<int64_t>(1, 32768 / q.columns), [&](int64_t first, int64_t last) {
      kernels.row_ranges(q, data, first, last, ranges.units.data());
    });
  }
  for (const UnitRange& range : ranges.units) {
    ranges.tensor = {std::max(ranges.tensor.amax, range.amax), std::min(ranges.tensor.low, range.low),
                     std::max(ranges.tensor.high, range.high), ranges.tensor.nonfinite | range.nonfinite};
  }
  if (q.format.granularity == Granularity::kTensor) ranges.units = {ranges.tensor};
  return ranges;
}

// Run the lowered call on a contiguous CPU tensor; the caller has found that the fault acts. `partials`: one a segment,
// or null.
void run_on_cpu(const at::Tensor& x, const Rule&, QuantizeArguments& q, const CallTensors&, SegmentPartial* partials) {
  Ranges ranges;
  if (needs_ranges(q.format) && x.numel() > 0) ranges = cpu_ranges(q, x);
  q.ranges = ranges.units.data();
  q.tensor = &ranges.tensor;
  const Traversal traversal = traversal_of(q, partials != nullptr);
  over_segments(traversal, [&](int64_t first, int64_t last) {
    cpu::kernels().quantize(q, traversal, first, last, x.mutable_data_ptr(), partials);
  });
}

void run_on_cpu(const at::Tensor& x, const Rule& rule, FaultArguments& a, const CallTensors& tensors,
                SegmentPartial* partials) {
  const FaultInputs inputs = put_inputs(a, x, tensors, [&] { return cpu_reference(a, x); });
  a.profile = rule.what.profile.get();
  const Traversal traversal = traversal_of(a, partials != nullptr);
  over_segments(traversal, [&](int64_t first, int64_t last) {
    cpu::kernels().fault(a, traversal, first, last, x.mutable_data_ptr(), partials);
  });
}

}  // namespace

template <class Arguments>
void apply_on_cpu(const at::Tensor& x, const Rule& rule, Arguments arguments, const CallTensors& tensors) {
  Control* row = tensors.control ? reinterpret_cast<Control*>(tensors.control->mutable_data_ptr<int32_t>()) : nullptr;
  if (row) arguments.control = started(*row);
  if (!arguments.control.armed) return;
  if (lifetime_acts(arguments.lifetime, arguments.noise_key, arguments.control)) {
    std::vector<SegmentPartial> partials;
    if (tensors.ledger) partials.resize(static_cast<std::size_t>(traversal_of(arguments, true).segments));
    run_on_cpu(x, rule, arguments, tensors, tensors.ledger ? partials.data() : nullptr);
    if (tensors.ledger) add_to_ledger(partials, x.numel(), ledger_words(*tensors.ledger));
  } else if (tensors.ledger) {
    ledger_words(*tensors.ledger)[kWordCalls] += 1;
  }
  if (row) row->progress += kProgressPerCall;
}

template void apply_on_cpu(const at::Tensor&, const Rule&, FaultArguments, const CallTensors&);
template void apply_on_cpu(const at::Tensor&, const Rule&, QuantizeArguments, const CallTensors&);

}  // namespace faultline::numeric
