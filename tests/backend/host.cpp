#include "host.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "streams.h"

namespace toy {
namespace {

std::atomic<Defect> defect{Defect::kNone};
std::atomic<int64_t> calls{0};

at::Tensor with_geometry(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

// Host memory that a CPU tensor holds, under the device's name.
at::DataPtr device_pointer(const c10::Storage& host) {
  auto* keeper = new c10::Storage(host);
  const auto free = [](void* kept) {
    auto* storage = static_cast<c10::Storage*>(kept);
    forget_memory(storage->data(), storage->nbytes());
    delete storage;
  };
  return {keeper->mutable_data(), keeper, free, c10::Device(kType, 0)};
}

c10::Storage device_storage(const c10::Storage& host) {
  return c10::Storage(c10::Storage::use_byte_size_t(), host.nbytes(), device_pointer(host), c10::GetAllocator(kType),
                      /*resizable=*/true);
}

bool is_shift(const std::string& name) { return name.find("shift") != std::string::npos; }
bool is_arithmetic(const std::string& name) {
  return name.starts_with("aten::mul") || name.starts_with("aten::add") || name.starts_with("aten::sub") ||
         name.starts_with("aten::div");
}

// Denormal numbers are zero while it lives, where the device flushes them.
class Flushing {
 public:
  Flushing() : on_(defect == Defect::kFlushed) {
    if (on_) at::globalContext().setFlushDenormal(true);
  }
  ~Flushing() {
    if (on_) at::globalContext().setFlushDenormal(false);
  }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

 private:
  bool on_;
};

void lose_precision(const at::Tensor& computed) {
  if (computed.defined() && computed.is_cpu() && computed.scalar_type() == at::kFloat)
    computed.view(at::kInt).bitwise_and_(static_cast<int64_t>(0xFFFFE000));
}

// Each tensor in the value, a list's elements too.
template <class Function>
c10::IValue over_tensors(const c10::IValue& value, const Function& function) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(function(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector())
      list.push_back(tensor.defined() ? function(tensor) : tensor);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor && tensor->defined() ? std::optional(function(*tensor)) : tensor);
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kType) return c10::IValue(c10::Device(c10::kCPU));
  return value;
}

}  // namespace

void set_defect(Defect now) { defect = now; }
int64_t calls_on_host() { return calls; }

Shadows::Memory& Shadows::memory_of(const c10::Storage& device) {
  for (Memory& memory : memories_) {
    if (memory.device.unsafeGetStorageImpl() == device.unsafeGetStorageImpl()) return memory;
  }
  void* data = device.unsafeGetStorageImpl()->mutable_data_ptr().get();
  at::DataPtr pointer(data, data, [](void*) {}, c10::kCPU);
  c10::Storage host(c10::Storage::use_byte_size_t(), device.nbytes(), std::move(pointer), c10::GetCPUAllocator(),
                    /*resizable=*/true);
  return memories_.emplace_back(Memory{device, host, data});
}

const Shadows::Memory* Shadows::memory_of_host(const c10::Storage& host) const {
  for (const Memory& memory : memories_) {
    if (memory.host.unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) return &memory;
  }
  return nullptr;
}

at::Tensor Shadows::of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kType) return tensor;
  TORCH_CHECK(tensor.layout() == at::kStrided, "toy: a tensor is not dense");
  for (const Pair& pair : pairs_) {
    if (pair.device.is_same(tensor)) return pair.host;
  }
  at::Tensor host = with_geometry(memory_of(tensor.storage()).host, c10::DispatchKey::CPU, tensor);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) host.unsafeGetTensorImpl()->set_wrapped_number(true);
  pairs_.push_back({tensor, host});
  return host;
}

at::Tensor Shadows::back(const at::Tensor& computed) {
  if (!computed.defined() || !computed.is_cpu()) return computed;
  for (const Pair& pair : pairs_) {
    if (pair.host.is_same(computed)) return pair.device;
  }
  TORCH_CHECK(computed.layout() == at::kStrided, "toy: a result is not dense");
  const Memory* memory = memory_of_host(computed.storage());
  if (memory == nullptr)
    memory = &memories_.emplace_back(
        Memory{device_storage(computed.storage()), computed.storage(), computed.storage().mutable_data()});
  return with_geometry(memory->device, c10::DispatchKey::PrivateUse1, computed);
}

void Shadows::settle() {
  for (Memory& memory : memories_) {
    if (memory.host.mutable_data() == memory.data && memory.host.nbytes() == memory.device.nbytes()) continue;
    memory.data = memory.host.mutable_data();
    memory.device.unsafeGetStorageImpl()->set_data_ptr_noswap(device_pointer(memory.host));
    memory.device.unsafeGetStorageImpl()->set_nbytes(memory.host.nbytes());
  }
  for (const Pair& pair : pairs_) {
    c10::TensorImpl* own = pair.device.unsafeGetTensorImpl();
    const Memory* memory = memory_of_host(pair.host.storage());
    TORCH_CHECK(memory != nullptr, "toy: a tensor was given memory that the device does not know");
    if (memory->device.unsafeGetStorageImpl() != pair.device.storage().unsafeGetStorageImpl())
      own->set_storage_keep_dtype(memory->device);
    if (pair.host.sizes() != pair.device.sizes() || pair.host.strides() != pair.device.strides() ||
        pair.host.storage_offset() != pair.device.storage_offset())
      own->set_sizes_and_strides(pair.host.sizes(), pair.host.strides(), pair.host.storage_offset());
  }
}

// What an operator does to memory, told to the watch over streams. A view does nothing.
void watch_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!streams_are_watched()) return;
  const auto& schema = op.schema();
  const std::size_t arguments = schema.arguments().size();
  const auto is_view = [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  };
  if (std::any_of(schema.returns().begin(), schema.returns().end(), is_view)) return;
  for (const bool writes : {false, true}) {  // what it writes stands for what it reads of the same memory
    for (std::size_t i = 0; i < arguments; ++i) {
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      if ((alias != nullptr && alias->isWrite()) != writes) continue;
      over_tensors(torch::jit::peek(stack, i, arguments), [&](const at::Tensor& tensor) {
        touches(schema.name(), tensor, writes);
        return tensor;
      });
    }
  }
  if (schema.name() == "aten::_local_scalar_dense") host_has_seen(current_stream());
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.operator_name().name;
  if (defect == Defect::kNoShifts && is_shift(name))
    C10_THROW_ERROR(NotImplementedError, name + " has no kernel on toy");
  ++calls;
  Shadows shadows;
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const std::size_t arguments = op.schema().arguments().size(), results = op.schema().returns().size();
  watch_arguments(op, *stack);
  for (std::size_t i = 0; i < arguments; ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, arguments);
    value = over_tensors(value, [&](const at::Tensor& tensor) { return shadows.of(tensor); });
  }
  {
    const Flushing flushing;
    op.callBoxed(stack);
  }
  shadows.settle();
  const bool imprecise = defect == Defect::kImprecise && is_arithmetic(name);
  for (std::size_t i = 0; i < results; ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, results);
    value = over_tensors(value, [&](const at::Tensor& tensor) {
      if (imprecise) lose_precision(tensor);
      const at::Tensor result = shadows.back(tensor);
      if (op.schema().returns()[i].alias_info() == nullptr) touches(name, result, true);
      return result;
    });
  }
}

}  // namespace toy
