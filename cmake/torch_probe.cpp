// What we take from torch beyond its stable interface, in one small file: compiled before anything else for a torch that
// nobody has built us for, so that one that has changed is refused with a sentence and not with pages of errors.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

struct Kernel final : c10::OperatorKernel {
  explicit Kernel(c10::SafeKernelFunction kernel) : original(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    original.callBoxed(op, keys, stack);
  }
  c10::SafeKernelFunction original;
};

std::unique_ptr<torch::Library> wrap() {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("mm", torch::CppFunction::makeFromBoxedFunctor(
                          std::make_unique<Kernel>(op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU))));
  return library;
}
