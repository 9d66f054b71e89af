// Gloo's process group. The wheel carries the class and its header but not Gloo's own headers; the few types that the
// header names are declared in gloo_shim/, and the layout of the class, which is libtorch's, is checked against the
// size that this torch allocates.
#define USE_C10D_GLOO 1
#include "cluster/process_groups.h"

#include <torch/version.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace faultline::cluster {

// We compile the class from its header and let libtorch construct it: sizes must agree. Measured for each version that
// we build against, as what libtorch_python asks operator new for before it calls the constructor.
constexpr std::size_t size_without_mutex(int minor) { return minor == 11 || minor == 13 ? 448 : minor == 15 ? 504 : 0; }
static_assert(TORCH_VERSION_MAJOR == 2 && size_without_mutex(TORCH_VERSION_MINOR) > 0,
              "measure sizeof(ProcessGroupGloo) for this torch");
// A mutex is 40 bytes on x86-64 and 48 on 64-bit Arm; all else is equal.
static_assert(sizeof(c10d::ProcessGroupGloo) == size_without_mutex(TORCH_VERSION_MINOR) + sizeof(std::mutex),
              "the declarations in gloo_shim/ do not fit this torch");

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix,
                                            int rank, int ranks, std::chrono::milliseconds timeout,
                                            const std::string& address) {
  auto own = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  if (address.empty())
    return c10::make_intrusive<c10d::ProcessGroupGloo>(own, rank, ranks,
                                                       c10d::ProcessGroupGloo::Options::create_default(timeout));
  auto options = c10::make_intrusive<c10d::ProcessGroupGloo::Options>(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(own, rank, ranks, options);
}

}  // namespace faultline::cluster
