#include "numeric/apply.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include "numeric/arithmetic.h"
#include "numeric/cpu/kernels.h"
#include "numeric/digest.h"
#include "numeric/digest_into.h"
#ifdef FAULTLINE_WITH_CUDA
#include "numeric/cuda/kernels.h"
#endif

namespace faultline {
namespace {

// True where no two elements share memory: sorted by stride, each dimension steps over everything below it.
bool has_own_memory(const at::Tensor& x) {
  if (x.numel() <= 1 || x.is_contiguous()) return true;
  std::vector<int64_t> order(static_cast<std::size_t>(x.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x.stride(a) < x.stride(b); });
  int64_t reach = 0;
  for (const int64_t d : order) {
    if (x.size(d) == 1) continue;
    if (x.stride(d) <= reach) return false;
    reach += (x.size(d) - 1) * x.stride(d);
  }
  return true;
}

void check_companion(const std::optional<at::Tensor>& tensor, const at::Tensor& x, const char* name,
                     at::ScalarType dtype, int64_t size) {
  if (!tensor) return;
  if (tensor->device() != x.device()) {
    throw UsageError(fmt::format("{} is on {}, the tensor on {}; put both on one device", name, tensor->device().str(),
                                 x.device().str()));
  }
  if (tensor->scalar_type() != dtype || tensor->numel() != size || !tensor->is_contiguous()) {
    throw UsageError(fmt::format("{} must be a contiguous {} tensor of {} elements; got {} of {}", name,
                                 c10::toString(dtype), size, c10::toString(tensor->scalar_type()), tensor->numel()));
  }
}

void check_companions(const at::Tensor& x, const Rule& rule, const CallTensors& tensors) {
  const TensorShape shape = shape_of(x);
  check_companion(tensors.control, x, "control", at::kInt, sizeof(Control) / 4);
  check_companion(tensors.ledger, x, "ledger", at::kLong, kLedgerWords);
  check_companion(tensors.row_keys, x, "row_keys", at::kLong, shape.columns == 0 ? 0 : shape.elements / shape.columns);
  if (tensors.row_keys && !rule.keyed_by_row)
    throw UsageError(fmt::format("row_keys were given, but rule '{}' is not keyed_by: row", rule.name));
  if (is_replacement(rule.what.kind)) {
    if (!tensors.replacement)
      throw UsageError(
          fmt::format("rule '{}': {} replaces what an operator computes; it needs a plan with where.operator",
                      rule.name, kind_name(rule.what.kind)));
    check_companion(tensors.replacement, x, "the replacement", x.scalar_type(), x.numel());
  }
  if (rule.keyed_by_row && shape.columns >= (int64_t{1} << 26))
    throw UsageError(fmt::format("keyed_by: row works up to 2^26 columns; this tensor has {}", shape.columns));
}

Control control_of(const Rule& rule, const Identity& identity, const CallPoint& point) {
  Control control;
  control.strength = static_cast<float>(point.strength.value_or(rule.what.strength));
  control.step = point.step;
  control.call = point.call;
  control.phase = identity.phase;
  return control;
}

uint64_t* ledger_words(const at::Tensor& ledger) {
  return reinterpret_cast<uint64_t*>(ledger.mutable_data_ptr<int64_t>());
}

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

std::vector<UnitRange> cpu_ranges(const QuantizeArguments& q, const at::Tensor& x) {
  const auto& kernels = cpu::kernels();
  const void* data = x.const_data_ptr();
  if (q.format.granularity == Granularity::kTile) {
    const int64_t down = (q.rows + kFormatTile - 1) / kFormatTile, across = (q.columns + kFormatTile - 1) / kFormatTile;
    std::vector<UnitRange> ranges(static_cast<std::size_t>(down * across));
    at::parallel_for(0, down, 1, [&](int64_t first, int64_t last) {
      kernels.tile_ranges(q.dtype, data, q.rows, q.columns, first, last, ranges.data());
    });
    return ranges;
  }
  std::vector<UnitRange> ranges(static_cast<std::size_t>(q.rows));
  at::parallel_for(0, q.rows, std::max<int64_t>(1, 32768 / q.columns), [&](int64_t first, int64_t last) {
    kernels.row_ranges(q.dtype, data, q.columns, first, last, ranges.data());
  });
  if (q.format.granularity == Granularity::kRow) return ranges;
  UnitRange all;
  for (const UnitRange& range : ranges) {
    all = {std::max(all.amax, range.amax), std::min(all.low, range.low), std::max(all.high, range.high),
           all.nonfinite | range.nonfinite};
  }
  return {all};
}

bool needs_ranges(const FormatArguments& format) {
  return format.kind == FormatKind::kNvfp4 ||
         (format.granularity != Granularity::kBlock && format.kind != FormatKind::kCast);
}

int64_t chunks_of(const FaultArguments& a) { return (a.elements + kChunk - 1) / kChunk; }
int64_t chunks_of(const QuantizeArguments& q) { return q.rows * q.chunks_per_row; }

template <class Arguments>
Traversal traversal_of(const Arguments& arguments, bool counted) {
  return counted ? make_traversal(chunks_of(arguments)) : make_uncounted_traversal(chunks_of(arguments));
}

// Run the lowered call on a contiguous CPU tensor; the caller has found that the fault acts. `partials`: one a segment,
// or null.
void run_on_cpu(const at::Tensor& x, const Rule&, QuantizeArguments& q, const CallTensors&, SegmentPartial* partials) {
  std::vector<UnitRange> ranges;
  if (needs_ranges(q.format) && x.numel() > 0) ranges = cpu_ranges(q, x);
  q.ranges = ranges.data();
  const Traversal traversal = traversal_of(q, partials != nullptr);
  over_segments(traversal, [&](int64_t first, int64_t last) {
    cpu::kernels().quantize(q, traversal, first, last, x.mutable_data_ptr(), partials);
  });
}

void run_on_cpu(const at::Tensor& x, const Rule& rule, FaultArguments& a, const CallTensors& tensors,
                SegmentPartial* partials) {
  at::Tensor reference, source;
  if (a.reference_kind != Reference::kNone && a.elements > 0) {
    reference = cpu_reference(a, x);
    a.reference = reference.const_data_ptr<float>();
  }
  if (a.kind == FaultKind::kSwap) {
    source = x.clone();
    a.source = source.const_data_ptr();
  }
  if (is_replacement(a.kind)) a.source = tensors.replacement->const_data_ptr();
  a.profile = rule.what.profile.get();
  a.row_keys = tensors.row_keys ? tensors.row_keys->const_data_ptr<int64_t>() : nullptr;
  const Traversal traversal = traversal_of(a, partials != nullptr);
  over_segments(traversal, [&](int64_t first, int64_t last) {
    cpu::kernels().fault(a, traversal, first, last, x.mutable_data_ptr(), partials);
  });
}

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

#ifdef FAULTLINE_WITH_CUDA
void* current_stream(const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStream(device).native_handle();
}

// Profiles travel to a device once; the copy lives as long as the process.
const ProfileTable* device_profile(const std::shared_ptr<const ProfileTable>& profile, const at::Device& device) {
  if (!profile) return nullptr;
  static std::mutex mutex;
  static std::map<std::pair<const ProfileTable*, int>, std::pair<std::shared_ptr<const ProfileTable>, at::Tensor>>
      copies;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = copies[{profile.get(), device.index()}];
  if (!entry.first) {
    const at::Tensor bytes = at::from_blob(const_cast<ProfileTable*>(profile.get()),
                                           {static_cast<int64_t>(sizeof(ProfileTable))}, at::kByte);
    entry = {profile, bytes.to(device)};
  }
  return reinterpret_cast<const ProfileTable*>(entry.second.const_data_ptr<uint8_t>());
}

// The digest's keys, once a device.
const uint32_t* device_digest_keys(const at::Device& device) {
  static std::mutex mutex;
  static std::map<int, at::Tensor> copies;
  const std::lock_guard<std::mutex> lock(mutex);
  at::Tensor& copy = copies[device.index()];
  if (!copy.defined()) {
    uint32_t words[2 * kDigestWords];
    fill_digest_keys(words);
    copy = at::from_blob(words, {2 * kDigestWords}, at::kInt).to(device);
  }
  return reinterpret_cast<const uint32_t*>(copy.const_data_ptr<int32_t>());
}

at::Tensor cuda_reference(const FaultArguments& a, const at::Tensor& x, void* stream) {
  const ReferenceArguments r{a.dtype, a.reference_kind, a.elements, a.columns};
  const int64_t count = a.axis == Axis::kToken ? a.elements / a.columns : a.axis == Axis::kChannel ? a.columns : 1;
  at::Tensor reference = at::empty({count}, x.options().dtype(at::kFloat));
  const int64_t size = cuda::reference_scratch(r, a.axis);
  at::Tensor scratch = a.axis == Axis::kTensor ? at::zeros({size}, x.options().dtype(at::kDouble))
                                               : at::empty({size}, x.options().dtype(at::kDouble));
  cuda::reference(r, a.axis, x.const_data_ptr(), scratch.mutable_data_ptr<double>(),
                  reference.mutable_data_ptr<float>(), stream);
  return reference;
}

at::Tensor cuda_ranges(const QuantizeArguments& q, const at::Tensor& x, void* stream) {
  const bool tensor = q.format.kind == FormatKind::kNvfp4 || q.format.granularity == Granularity::kTensor;
  const Granularity granularity = tensor ? Granularity::kTensor : q.format.granularity;
  const int64_t tiles = ((q.rows + kFormatTile - 1) / kFormatTile) * ((q.columns + kFormatTile - 1) / kFormatTile);
  const int64_t units = tensor ? 1 : granularity == Granularity::kRow ? q.rows : tiles;
  at::Tensor ranges =
      at::zeros({units, static_cast<int64_t>(sizeof(UnitRange) / sizeof(float))}, x.options().dtype(at::kFloat));
  cuda::unit_ranges(q.dtype, granularity, q.format.kind == FormatKind::kNvfp4, x.const_data_ptr(), q.rows, q.columns,
                    reinterpret_cast<UnitRange*>(ranges.mutable_data_ptr<float>()), stream);
  return ranges;
}

void run_on_cuda(const at::Tensor& x, const Rule&, QuantizeArguments& q, const CallTensors&,
                 const cuda::Evidence& evidence, void* stream) {
  at::Tensor ranges;
  if (needs_ranges(q.format) && x.numel() > 0) {
    ranges = cuda_ranges(q, x, stream);
    q.ranges = reinterpret_cast<const UnitRange*>(ranges.const_data_ptr<float>());
  }
  cuda::quantize(q, traversal_of(q, evidence.ledger != nullptr), x.mutable_data_ptr(), evidence, stream);
}

void run_on_cuda(const at::Tensor& x, const Rule& rule, FaultArguments& a, const CallTensors& tensors,
                 const cuda::Evidence& evidence, void* stream) {
  at::Tensor reference, source;
  if (a.reference_kind != Reference::kNone && a.elements > 0) {
    reference = cuda_reference(a, x, stream);
    a.reference = reference.const_data_ptr<float>();
  }
  if (a.kind == FaultKind::kSwap) {
    source = x.clone();
    a.source = source.const_data_ptr();
  }
  if (is_replacement(a.kind)) a.source = tensors.replacement->const_data_ptr();
  a.profile = device_profile(rule.what.profile, x.device());
  a.row_keys = tensors.row_keys ? tensors.row_keys->const_data_ptr<int64_t>() : nullptr;
  cuda::fault(a, traversal_of(a, evidence.ledger != nullptr), x.mutable_data_ptr(), evidence, stream);
}

template <class Arguments>
void apply_on_cuda(const at::Tensor& x, const Rule& rule, Arguments arguments, const CallTensors& tensors) {
  const c10::DeviceGuard guard(x.device());
  cuda::Evidence evidence;
  if (tensors.control) evidence.control = reinterpret_cast<Control*>(tensors.control->mutable_data_ptr<int32_t>());
  if (tensors.ledger) evidence.ledger = ledger_words(*tensors.ledger);
  run_on_cuda(x, rule, arguments, tensors, evidence, current_stream(x.device()));
}
#endif

[[noreturn]] void refuse_device(const at::Tensor& x) {
  throw UsageError(fmt::format("tensors on {} are not supported by this build{}; use CPU or CUDA tensors",
                               x.device().str(), x.is_cuda() ? " (it was made without nvcc)" : ""));
}

}  // namespace

bool is_capturing([[maybe_unused]] const at::Tensor& x) {
#ifdef FAULTLINE_WITH_CUDA
  if (x.is_cuda()) return cuda::is_capturing(current_stream(x.device()));
#endif
  return false;
}

bool has_cuda_kernels() {
#ifdef FAULTLINE_WITH_CUDA
  return true;
#else
  return false;
#endif
}

Dtype dtype_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat: return Dtype::kFloat32;
    case at::kBFloat16: return Dtype::kBFloat16;
    case at::kHalf: return Dtype::kFloat16;
    case at::kDouble: return Dtype::kFloat64;
    default:
      throw UsageError(fmt::format("a fault acts on fp32, bf16, fp16 or (on a CPU) fp64; this tensor is {}",
                                   c10::toString(x.scalar_type())));
  }
}

TensorShape shape_of(const at::Tensor& x) { return {dtype_of(x), x.numel(), x.dim() == 0 ? 1 : x.size(-1)}; }

void check_tensor(const at::Tensor& x, const char* name) {
  if (!x.defined()) throw UsageError(fmt::format("{} is an undefined tensor", name));
  if (x.layout() != at::kStrided)
    throw UsageError(fmt::format("{} is not dense: its layout is {}", name, c10::str(x.layout())));
  const Dtype dtype = dtype_of(x);
  if (!x.is_cpu() && dtype == Dtype::kFloat64)
    throw UsageError(fmt::format("{} is fp64 on {}; fp64 is supported on a CPU", name, x.device().str()));
  if (!has_own_memory(x))
    throw UsageError(
        fmt::format("elements of {} share memory (an expanded or overlapping view); call contiguous() first", name));
}

void apply_(const at::Tensor& x, const Rule& rule, const Keys& keys, const Control& control,
            const CallTensors& tensors) {
  check_tensor(x, "the tensor");
  check_companions(x, rule, tensors);
  const at::Tensor work = x.is_contiguous() ? x : x.contiguous();
  const auto run = [&](const auto& arguments) {
    if (x.is_cpu()) {
      apply_on_cpu(work, rule, arguments, tensors);
#ifdef FAULTLINE_WITH_CUDA
    } else if (x.is_cuda()) {
      apply_on_cuda(work, rule, arguments, tensors);
#endif
    } else {
      refuse_device(x);
    }
  };
  if (rule.what.kind == FaultKind::kQuantize) {
    run(lower_format(rule, shape_of(x), keys, control));
  } else {
    run(lower_fault(rule, shape_of(x), keys, control));
  }
  if (!work.is_same(x)) x.copy_(work);
}

void apply_(const at::Tensor& x, const Rule& rule, const Identity& identity, const CallPoint& point,
            const CallTensors& tensors) {
  if (point.strength && !(std::isfinite(*point.strength) && *point.strength >= 0))
    throw UsageError(fmt::format("strength {} is out of range; it must be finite and at least 0", *point.strength));
  apply_(x, rule, make_keys(identity, rule.name), control_of(rule, identity, point), tensors);
}

at::Tensor make_ledger(at::Device device) {
  return at::zeros({kLedgerWords}, at::TensorOptions().dtype(at::kLong).device(device));
}

at::Tensor ledger_columns(const at::Tensor& ledger) {
  if (ledger.scalar_type() != at::kLong || ledger.numel() != kLedgerWords)
    throw UsageError(fmt::format("a ledger is {} elements of int64; got {} of {}", kLedgerWords, ledger.numel(),
                                 c10::toString(ledger.scalar_type())));
  const at::Tensor words = ledger.cpu().contiguous();
  double columns[kLedgerColumns];
  decode_ledger(reinterpret_cast<const uint64_t*>(words.const_data_ptr<int64_t>()), columns);
  at::Tensor out = at::empty({kLedgerColumns}, at::kDouble);
  std::memcpy(out.mutable_data_ptr<double>(), columns, sizeof columns);
  return out;
}

at::Tensor make_control(const at::Device& device, const Rule& rule, const CallPoint& point) {
  at::Tensor row = at::empty({sizeof(Control) / 4}, at::kInt);
  const Control control = control_of(rule, {}, point);
  std::memcpy(row.mutable_data_ptr<int32_t>(), &control, sizeof control);
  return row.to(device);
}

void digest_into(const at::Tensor& x, int64_t* state) {
  if (x.layout() != at::kStrided) throw UsageError("a digest needs a dense tensor");
  const at::Tensor bytes = x.contiguous();
  const int64_t size = bytes.numel() * static_cast<int64_t>(bytes.element_size()),
                tiles = (size + kDigestTile - 1) / kDigestTile;
  if (x.is_cpu()) {
    std::mutex mutex;
    uint64_t total = 0;
    at::parallel_for(0, tiles, 8, [&](int64_t first, int64_t last) {
      const uint64_t part = cpu::kernels().digest_tiles(bytes.const_data_ptr(), size, first, last);
      const std::lock_guard<std::mutex> lock(mutex);
      total = fold61(total + part);
    });
    *state = static_cast<int64_t>(finish_digest(total, static_cast<uint64_t>(tiles), static_cast<uint64_t>(size)));
    return;
  }
#ifdef FAULTLINE_WITH_CUDA
  if (x.is_cuda()) {
    const c10::DeviceGuard guard(x.device());
    auto* words = reinterpret_cast<uint64_t*>(state);
    cuda::digest(bytes.const_data_ptr(), size, device_digest_keys(x.device()), words + 1, words,
                 current_stream(x.device()));
    return;
  }
#endif
  refuse_device(x);
}

at::Tensor digest(const at::Tensor& x) {
  const at::Tensor state = at::zeros({kDigestStateWords}, x.options().dtype(at::kLong).layout(at::kStrided));
  digest_into(x, state.mutable_data_ptr<int64_t>());
  return state.select(0, 0);
}

at::Tensor checksum(const at::Tensor& x) {
  if (x.layout() != at::kStrided) throw UsageError("a checksum needs a dense tensor");
  const at::Tensor values = x.contiguous();
  const int element_size = static_cast<int>(values.element_size());
  if (element_size > 8)
    throw UsageError(fmt::format("a checksum needs elements of 1, 2, 4 or 8 bytes; {} has {}",
                                 c10::toString(x.scalar_type()), element_size));
  if (x.is_cpu()) {
    std::atomic<uint64_t> total{0};
    at::parallel_for(0, values.numel(), 1 << 16, [&](int64_t first, int64_t last) {
      total += cpu::kernels().checksum(values.const_data_ptr(), element_size, first, last);
    });
    return at::scalar_tensor(static_cast<int64_t>(total.load()), at::kLong);
  }
#ifdef FAULTLINE_WITH_CUDA
  if (x.is_cuda()) {
    const c10::DeviceGuard guard(x.device());
    at::Tensor state = at::zeros({}, x.options().dtype(at::kLong));
    cuda::checksum(values.const_data_ptr(), element_size, values.numel(),
                   reinterpret_cast<uint64_t*>(state.mutable_data_ptr<int64_t>()), current_stream(x.device()));
    return state;
  }
#endif
  refuse_device(x);
}

}  // namespace faultline
