#include "numeric/apply.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "numeric/apply_device.h"
#include "numeric/portable/portable.h"
#ifdef FAULTLINE_WITH_CUDA
#include "numeric/cuda/kernels.h"
#include "site/torch_support.h"
#endif

namespace faultline::numeric {
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

}  // namespace

[[noreturn]] void refuse_device(const at::Tensor& x) {
  throw UsageError(fmt::format("tensors on {} are not supported by this build{}; use CPU or CUDA tensors",
                               x.device().str(), x.is_cuda() ? " (it was made without nvcc)" : ""));
}

bool is_capturing([[maybe_unused]] const at::Tensor& x) {
#ifdef FAULTLINE_WITH_CUDA
  if (x.is_cuda()) return cuda::is_capturing(site::current_stream(x.device()));
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
    if (portable::serves(x.device())) {
      portable::apply(work, rule, arguments, tensors);
    } else if (x.is_cpu()) {
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

}  // namespace faultline::numeric
