// Where our code meets torch's: errors at the border, warnings about what we do on purpose, the stream in use.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "base/error.h"

namespace faultline::site {

// A user's mistake that is thrown inside an operator passes through torch, which hands on only errors of its own kind.
// Python sees its ValueError; our program knows it again by its type.
class UsageThroughTorch : public c10::ValueError {
 public:
  UsageThroughTorch(c10::SourceLocation where, std::string sentence) : c10::ValueError(where, std::move(sentence)) {}
};

// A user's mistake becomes Python's ValueError with our sentence, any other error of ours a RuntimeError.
template <class Function>
auto translated(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const UsageError& error) {
    throw UsageThroughTorch({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error.what());
  } catch (const Error& error) {
    TORCH_CHECK(false, error.what());
  }
}

// While it lives, "Overriding a previously registered kernel" is not printed.
class SilentWarnings : public c10::WarningHandler {
 public:
  SilentWarnings();
  ~SilentWarnings() override;
  void process(const c10::Warning&) override {}

 private:
  c10::WarningHandler* before_;
};

// The stream on which torch queues a tensor's work now, as CUDA's own handle: through c10's device-generic guard,
// because libtorch_cuda is not linked.
void* current_stream(const c10::Device& device);

// Note [First calls of MKL]
// torch's wheels for x86 compute exp, log, sqrt and their kind with MKL's vector functions, which choose their kernel
// at the first call. Where two threads make that call at once, one of them may run a kernel of 11 bits for its half of
// that one tensor (pytorch issue 188792): one training in a hundred reported another entropy in its first step. One
// element of each function, from one thread, as the library is loaded: after that the choice is made.
void settle_vector_functions();

}  // namespace faultline::site
