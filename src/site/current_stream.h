// The stream on which torch queues a tensor's work now, as CUDA's own handle: through c10's device-generic guard,
// because libtorch_cuda is not linked.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace faultline {

inline void* current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace faultline
