#define USE_C10D_GLOO 1
#include "race/gloo_backend.h"

#include <torch/version.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace faultline::race {

// We compile the class from its header and let libtorch construct it: sizes must agree. Measured for each version that
// we build against, as what libtorch_python asks operator new for before it calls the constructor.
static_assert(TORCH_VERSION_MAJOR == 2 && (TORCH_VERSION_MINOR == 11 || TORCH_VERSION_MINOR == 13),
              "measure sizeof(ProcessGroupGloo) for this torch");
// A mutex is 40 bytes on x86-64 and 48 on 64-bit Arm; all else is equal.
static_assert(sizeof(c10d::ProcessGroupGloo) == 448 + sizeof(std::mutex),
              "the declarations in gloo_shim/ do not fit this torch");

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix,
                                            int rank, int ranks, std::chrono::milliseconds timeout, bool loopback) {
  auto own = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  if (!loopback)
    return c10::make_intrusive<c10d::ProcessGroupGloo>(own, rank, ranks,
                                                       c10d::ProcessGroupGloo::Options::create_default(timeout));
  auto options = c10::make_intrusive<c10d::ProcessGroupGloo::Options>(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(own, rank, ranks, options);
}

}  // namespace faultline::race
