// Torch's backends as dispatch keys. A backend of somebody else registers its kernels with a key of its own
// (PrivateUse1, renamed `npu` by torch_npu; XPU; HPU); a ROCm build of torch registers them with CUDA's. What has to
// know where kernels lie asks here, so that no key is named anywhere else.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include <string>
#include <vector>

namespace faultline::site {

// Dense keys with kernels in this process, the CPU's left out: CUDA where torch_cuda is loaded, PrivateUse1 once its
// backend was imported. Torch's lazy tensors are not among them: they have no data when an operator has run.
std::vector<c10::DispatchKey> accelerator_keys();

c10::DispatchKey autograd_key(c10::DispatchKey dense);
bool is_dense_key(c10::DispatchKey key);
bool is_autograd_key(c10::DispatchKey key);
// Where a call with these keys finds its kernel; the CPU's key where no tensor says.
c10::DispatchKey backend_key(c10::DispatchKeySet keys);

std::string backend_title(c10::DispatchKey key);                        // "CPU", "PrivateUse1 (npu)"
std::string backend_titles(const std::vector<c10::DispatchKey>& keys);  // of dense keys, with commas between them

}  // namespace faultline::site
