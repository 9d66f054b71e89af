// What the test backend computes with: the CPU's kernels on its own memory, which is the host's. A tensor of the device
// has a shadow on the CPU that shares its bytes, sizes and strides; an operator runs on shadows, and what it returns or
// changes (geometry, storage) is carried back. Nothing is copied, so a result has the bits that the CPU gives.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

namespace toy {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

class Shadows {
 public:
  at::Tensor of(const at::Tensor& tensor);      // on the CPU; tensors that are not the device's as they are
  at::Tensor back(const at::Tensor& computed);  // on the device: the tensor itself, a view of one, or new memory
  void settle();  // what operators did to sizes, strides and storages of shadows, done to the device's tensors

 private:
  struct Memory {
    c10::Storage device, host;
    void* data;
  };
  struct Pair {
    at::Tensor device, host;
  };
  Memory& memory_of(const c10::Storage& device);
  const Memory* memory_of_host(const c10::Storage& host) const;
  std::vector<Memory> memories_;
  std::vector<Pair> pairs_;
};

// The operator on the CPU with the arguments on the stack, which its results replace.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// What the device does wrong, for tests of devices that are refused.
enum class Defect { kNone, kNoShifts, kFlushed, kImprecise };
void set_defect(Defect defect);
int64_t calls_on_host();  // operators that ran through run_on_host so far

}  // namespace toy
