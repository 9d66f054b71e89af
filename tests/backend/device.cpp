// A backend of torch for tests: key PrivateUse1, one device, host memory, the CPU's kernels behind the key. It has what
// torch asks of a backend (allocator, guard, hooks, a kernel for copies, a fallback for everything else) and knows
// nothing of the lab. tests/toy_device.py names it `toy` and gives it its Python module.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "host.h"
#include "streams.h"

namespace toy {
namespace {

const c10::Device kDevice(kType, 0);

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : c10::GetCPUAllocator()->raw_allocate(bytes);
    return {data, data, raw_deleter(), kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) {
      if (data != nullptr) c10::GetCPUAllocator()->raw_deallocate(data);
    };
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator)

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return current_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return next_stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return next_stream(); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  // The device is in step with the host, so that an event is over when it is recorded; streams.h watches who relies on
  // what.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    record_event(event, stream);
  }
  void block(void* event, const c10::Stream& stream) const override { block_by_event(event, stream); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { destroy_event(event); }
  bool queryEvent(void* event) const override {
    host_has_seen(event);
    return true;
  }
  void synchronizeEvent(void* event) const override { host_has_seen(event); }
  bool queryStream(const c10::Stream& stream) const override {
    host_has_seen(stream);
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override { host_has_seen(stream); }
  void synchronizeDevice(const c10::DeviceIndex) const override { host_has_seen_all(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    at::DataPtr data = allocator.allocate(bytes);
    std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};
const bool hooked = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  touches("a copy", from, false);
  touches("a copy", to, true);
  Shadows shadows;
  shadows.of(to).copy_(shadows.of(from));
  if (to.is_cpu() && !non_blocking) host_has_seen(current_stream());
  return to;
}
at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  Shadows shadows;
  const at::Tensor target = shadows.of(to);
  target.resize_(from.sizes()).copy_(shadows.of(from));
  shadows.settle();
  return to;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  c10::TensorImpl* own = self.unsafeGetTensorImpl();
  own->set_storage_keep_dtype(std::move(source));
  if (strides.empty()) {
    own->set_storage_offset(offset);
    own->set_sizes_contiguous(sizes);
  } else {
    own->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}
at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

// Fused attention under torch's own name for a backend's.
int64_t attention_choice(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool grouped) {
  Shadows shadows;
  std::optional<at::Tensor> host_mask;
  if (mask) host_mask = shadows.of(*mask);
  const int64_t choice =
      at::_fused_sdp_choice(shadows.of(q), shadows.of(k), shadows.of(v), host_mask, dropout, causal, scale, grouped);
  return static_cast<int64_t>(choice == static_cast<int64_t>(at::SDPBackend::flash_attention)
                                  ? at::SDPBackend::overrideable
                                  : at::SDPBackend::math);
}

using Attended = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                            at::Tensor, at::Tensor>;
Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias,
                double dropout, bool causal, bool, std::optional<double> scale) {
  Shadows shadows;
  std::optional<at::Tensor> mask;
  if (bias && bias->defined()) mask = shadows.of(*bias);
  const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      shadows.of(q), shadows.of(k), shadows.of(v), dropout, causal, mask, scale);
  return {shadows.back(out), shadows.back(logsumexp), {}, {}, q.size(2), k.size(2), {}, {}, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attend_backward(
    const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
    std::array<bool, 4>, const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&,
    int64_t, int64_t, double dropout, bool causal, const at::Tensor&, const at::Tensor&, std::optional<double> scale) {
  Shadows shadows;
  std::optional<at::Tensor> mask;
  if (bias.defined()) mask = shadows.of(bias);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      shadows.of(gradient), shadows.of(q), shadows.of(k), shadows.of(v), shadows.of(out), shadows.of(logsumexp),
      dropout, causal, mask, scale);
  return {shadows.back(dq), shadows.back(dk), shadows.back(dv), {}};
}

// Accelerators count integers, which the CPU's kernel does not.
at::Tensor histogram(const at::Tensor& x, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  Shadows shadows;
  return shadows.back(at::histc(shadows.of(x).to(at::kFloat), bins, min, max).to(x.scalar_type()));
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) { run_on_host(op, stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_and_resize);
  m.impl("histc", histogram);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("_scaled_dot_product_fused_attention_overrideable", attend);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", attend_backward);
  // Kernels that the CPU has for operators which dissolve elsewhere (silu_backward): the same numbers only with them.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (name.name.starts_with("aten::") && op && op->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  }
}

// What autocast does there: products, linears and attention in 16 bits, losses in fp32, as on a CPU.
using at::autocast::CastPolicy;
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

}  // namespace
}  // namespace toy

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &toy::attention_choice)
}
