// The operators of the `faultline::` namespace: schemas once, one kernel for every device (apply.cpp tells them
// apart), Meta kernels for tracing, autograd for the functional form. A fault is named by its short form or a flow map;
// parsed rules are cached by text, so a loop pays for parsing once.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>

#include "base/json.h"
#include "numeric/apply.h"
#include "numeric/portable/portable.h"
#include "numeric/portable/proof.h"
#include "numeric/resolution.h"
#include "numeric/tensor_memory.h"
#include "site/torch_support.h"

namespace faultline::numeric {
namespace {

constexpr std::size_t kRuleCache = 4096;

std::shared_ptr<const Rule> rule_of(const std::string& text) {
  static std::mutex mutex;
  static std::unordered_map<std::string, std::shared_ptr<const Rule>> rules;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = rules.find(text); found != rules.end()) return found->second;
  auto rule = std::make_shared<const Rule>(parse_rule(text, RuleUse::kOnTensor));
  if (rules.size() >= kRuleCache) rules.clear();
  rules.emplace(text, rule);
  return rule;
}

uint32_t counter(int64_t value, const char* name) {
  if (value < 0 || value > 0xFFFFFFFFll)
    throw UsageError(std::string(name) + " " + std::to_string(value) +
                     " is out of range; it counts from 0 to 4294967295");
  return static_cast<uint32_t>(value);
}

void run_(const at::Tensor& x, const std::string& fault, int64_t seed, const std::string& site, int64_t step,
          int64_t call, const CallTensors& tensors) {
  const auto rule = rule_of(fault);
  const Identity identity{static_cast<uint64_t>(seed), site, 0};
  check_visible(*rule, dtype_of(x));
  apply_(x, *rule, identity, {counter(step, "step"), counter(call, "call"), {}}, tensors);
}

at::Tensor& op_apply_(at::Tensor& x, const std::string& fault, int64_t seed, const std::string& site, int64_t step,
                      int64_t call, const std::optional<at::Tensor>& ledger,
                      const std::optional<at::Tensor>& row_keys) {
  return site::translated([&]() -> at::Tensor& {
    run_(x, fault, seed, site, step, call, {{}, ledger, row_keys});
    return x;
  });
}

at::Tensor op_apply(const at::Tensor& x, const std::string& fault, int64_t seed, const std::string& site, int64_t step,
                    int64_t call, const std::optional<at::Tensor>& ledger, const std::optional<at::Tensor>& row_keys) {
  return site::translated([&] {
    check_tensor(x, "the tensor");
    at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
    run_(y, fault, seed, site, step, call, {{}, ledger, row_keys});
    return y;
  });
}

// The form for taps and CUDA graphs: what changes from call to call is read from the control row on the device.
void op_inject_(at::Tensor& x, const at::Tensor& control, const std::optional<at::Tensor>& ledger,
                const std::string& fault, int64_t seed, const std::string& site,
                const std::optional<at::Tensor>& row_keys) {
  site::translated([&] {
    const auto rule = rule_of(fault);
    apply_(x, *rule, {static_cast<uint64_t>(seed), site, 0}, {}, {control, ledger, row_keys});
  });
}

at::Tensor op_control(const std::string& fault, int64_t step, at::Device device) {
  return site::translated([&] { return make_control(device, *rule_of(fault), {counter(step, "step"), 0, {}}); });
}

at::Tensor op_quantize(const at::Tensor& x, const std::string& format) {
  return op_apply(x, "quantize(format=" + format + ")", 0, "", 0, 0, {}, {});
}

at::Tensor op_ledger_columns(const at::Tensor& ledger) {
  return site::translated([&] { return ledger_columns(ledger); });
}

at::Tensor op_digest(const at::Tensor& x) {
  return site::translated([&] { return digest(x); });
}
at::Tensor op_checksum(const at::Tensor& x) {
  return site::translated([&] { return checksum(x); });
}

// JSON: what of the portable arithmetic agrees on a device, operation by operation and kind by kind.
std::string op_selftest(at::Device device) {
  return site::translated([&] {
    const auto list = [](const std::vector<portable::Finding>& findings) {
      Json all = Json::array();
      for (const auto& [name, complaint] : findings)
        all.push_back({{"name", name}, {"ok", complaint.empty()}, {"complaint", complaint}});
      return all;
    };
    return Json({{"device", device.str()},
                 {"arithmetic", portable::serves(device) ? "portable" : "native"},
                 {"operations", list(portable::elementary_findings(device))},
                 {"kinds", list(portable::kind_findings(device))}})
        .dump();
  });
}

// A Meta kernel also runs when only a companion tensor is a meta tensor: that is a mistake, not a trace.
void check_traced(const at::Tensor& x, const std::string& fault) {
  site::translated([&] {
    if (!x.is_meta())
      throw UsageError("ledger, control and row_keys must be on the tensor's device, " + x.device().str() +
                       "; one of them is on meta");
    (void)rule_of(fault);
    (void)dtype_of(x);
  });
}

at::Tensor& meta_apply_(at::Tensor& x, const std::string& fault, int64_t, const std::string&, int64_t, int64_t,
                        const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {
  check_traced(x, fault);
  return x;
}
at::Tensor meta_apply(const at::Tensor& x, const std::string& fault, int64_t, const std::string&, int64_t, int64_t,
                      const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {
  check_traced(x, fault);
  return at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
}
void meta_inject_(at::Tensor& x, const at::Tensor&, const std::optional<at::Tensor>&, const std::string& fault, int64_t,
                  const std::string&, const std::optional<at::Tensor>&) {
  check_traced(x, fault);
}
at::Tensor meta_quantize(const at::Tensor& x, const std::string& format) {
  check_traced(x, "quantize(format=" + format + ")");
  return at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
}
at::Tensor meta_scalar(const at::Tensor& x) { return at::empty({}, x.options().dtype(at::kLong)); }

// The operator again, below autograd, so that Meta and fake tensors find their own kernels.
at::Tensor redispatch_apply(const at::Tensor& x, const std::string& fault, int64_t seed, const std::string& site,
                            int64_t step, int64_t call, const std::optional<at::Tensor>& ledger,
                            const std::optional<at::Tensor>& row_keys) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("faultline::apply", "").typed<decltype(op_apply)>();
  return op.call(x, fault, seed, site, step, call, ledger, row_keys);
}

// Where the fault forces a constant. Found by applying it to a copy in which zeros are replaced by the smallest number,
// so that a zero inside the zone is seen to be forced too.
at::Tensor forced_mask(const at::Tensor& x, const std::string& fault, int64_t seed, const std::string& site,
                       int64_t step, int64_t call, const std::optional<at::Tensor>& row_keys) {
  const double tiny = x.scalar_type() == at::kDouble     ? 0x1p-1074
                      : x.scalar_type() == at::kHalf     ? 0x1p-24
                      : x.scalar_type() == at::kBFloat16 ? 0x1p-133
                                                         : 0x1p-149;
  const at::Tensor probe = at::where(x == 0, at::full_like(x, tiny), x).contiguous();
  return redispatch_apply(probe, fault, seed, site, step, call, {}, row_keys)
      .ne(probe)
      .logical_and(probe.eq(probe));  // NaN stays NaN
}

struct ApplyFunction : torch::autograd::Function<ApplyFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const std::string& fault,
                            int64_t seed, const std::string& site, int64_t step, int64_t call,
                            const std::optional<at::Tensor>& ledger, const std::optional<at::Tensor>& row_keys) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool masked = site::translated([&] { return rule_of(fault)->gradient == GradientRule::kMasked; });
    if (masked) context->save_for_backward({pack_bits(forced_mask(x, fault, seed, site, step, call, row_keys))});
    context->saved_data["masked"] = masked;
    return redispatch_apply(x, fault, seed, site, step, call, ledger, row_keys);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    at::Tensor gradient = gradients[0];
    if (context->saved_data["masked"].toBool()) gradient = mask_gradient(gradient, context->get_saved_variables()[0]);
    return {gradient, {}, {}, {}, {}, {}, {}, {}};
  }
};

void check_dense(const at::Tensor& x) {
  site::translated([&] {
    if (x.layout() != at::kStrided) throw UsageError("the tensor is not dense: its layout is " + c10::str(x.layout()));
  });
}

at::Tensor autograd_apply(const at::Tensor& x, const std::string& fault, int64_t seed, const std::string& site,
                          int64_t step, int64_t call, const std::optional<at::Tensor>& ledger,
                          const std::optional<at::Tensor>& row_keys) {
  check_dense(x);
  return ApplyFunction::apply(x, fault, seed, site, step, call, ledger, row_keys);
}

at::Tensor autograd_quantize(const at::Tensor& x, const std::string& format) {
  return autograd_apply(x, "quantize(format=" + format + ")", 0, "", 0, 0, {}, {});
}

// In place, the fault acts below autograd: gradients pass straight through. What cannot be honoured is refused.
at::Tensor& autograd_apply_(at::Tensor& x, const std::string& fault, int64_t seed, const std::string& site,
                            int64_t step, int64_t call, const std::optional<at::Tensor>& ledger,
                            const std::optional<at::Tensor>& row_keys) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("faultline::apply_", "").typed<decltype(op_apply_)>();
  check_dense(x);
  if (x.requires_grad() && at::GradMode::is_enabled()) {
    site::translated([&] {
      if (x.is_leaf())
        throw UsageError(
            "apply_ would edit a leaf that requires grad (a master weight); apply the fault to a copy with apply");
      if (rule_of(fault)->gradient == GradientRule::kMasked)
        throw UsageError("apply_ acts below autograd and cannot honour gradient: masked; use apply");
    });
  }
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.call(x, fault, seed, site, step, call, ledger, row_keys);
  }
  if (!x.is_inference()) x.unsafeGetTensorImpl()->bump_version();
  return x;
}

}  // namespace

TORCH_LIBRARY(faultline, m) {
  site::settle_vector_functions();
  m.def(
      "apply(Tensor x, str fault, *, int seed=0, str site='', int step=0, int call=0, Tensor(a!)? ledger=None, Tensor? "
      "row_keys=None) -> Tensor");
  m.def(
      "apply_(Tensor(a!) x, str fault, *, int seed=0, str site='', int step=0, int call=0, Tensor(b!)? ledger=None, "
      "Tensor? row_keys=None) -> Tensor(a!)");
  m.def(
      "inject_(Tensor(a!) x, Tensor(b!) control, Tensor(c!)? ledger, str fault, *, int seed=0, str site='', Tensor? "
      "row_keys=None) -> ()");
  m.def("ledger(*, Device device) -> Tensor", make_ledger);
  m.def("ledger_columns(Tensor ledger) -> Tensor", op_ledger_columns);
  m.def("control(str fault, *, int step=0, Device device) -> Tensor", op_control);
  m.def("quantize(Tensor x, str format) -> Tensor");
  m.def("digest(Tensor x) -> Tensor");
  m.def("selftest(Device device) -> str", op_selftest);
  m.def("checksum(Tensor x) -> Tensor");
}

#define FL_REGISTER(key)                  \
  TORCH_LIBRARY_IMPL(faultline, key, m) { \
    m.impl("apply", op_apply);            \
    m.impl("apply_", op_apply_);          \
    m.impl("inject_", op_inject_);        \
    m.impl("quantize", op_quantize);      \
    m.impl("digest", op_digest);          \
    m.impl("checksum", op_checksum);      \
  }
FL_REGISTER(CPU)
FL_REGISTER(CUDA)  // of a torch built for ROCm too
// Served by the portable arithmetic.
FL_REGISTER(PrivateUse1)
FL_REGISTER(XPU)
FL_REGISTER(HPU)
FL_REGISTER(MTIA)
FL_REGISTER(MPS)
#undef FL_REGISTER

TORCH_LIBRARY_IMPL(faultline, Meta, m) {
  m.impl("apply", meta_apply);
  m.impl("apply_", meta_apply_);
  m.impl("inject_", meta_inject_);
  m.impl("quantize", meta_quantize);
  m.impl("digest", meta_scalar);
  m.impl("checksum", meta_scalar);
}

TORCH_LIBRARY_IMPL(faultline, Autograd, m) {
  m.impl("apply", autograd_apply);
  m.impl("apply_", autograd_apply_);
  m.impl("quantize", autograd_quantize);
}

}  // namespace faultline::numeric
