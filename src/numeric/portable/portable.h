// The faults once more, in ATen's operators, for devices that have no kernels of ours: integer Philox, tables, fp32 and
// fp64 arithmetic on the tensor's own device, in chunks of bounded memory, without waiting for the device. The same
// bits, ledgers and digests as the CPU kernels wherever the device's elementary operations are IEEE 754's; whether they
// are is proven on each device before a kind is used there (proof.h).
//
// The interface is that of the two devices' halves (numeric/apply_device.h, numeric/digest.h); apply.cpp and
// digest_tensor.cpp choose. `FAULTLINE_ARITHMETIC=portable` chooses it on a CPU and on CUDA too.
#pragma once

#include "numeric/apply.h"

namespace faultline::numeric::portable {

// Whether the library has kernels for it: a CPU, and NVIDIA's GPUs; a ROCm build of torch calls AMD's by the same name.
bool has_own_kernels(const at::Device& device);

// Whether calls on this device are served here: it has no kernels of ours, or the environment asks for it.
bool serves(const at::Device& device);

// Like apply_on_cpu. Throws UsageError where the device is neither a CPU nor CUDA and has not proven the rule's kind.
template <class Arguments>
void apply(const at::Tensor& x, const Rule& rule, Arguments arguments, const CallTensors& tensors);

// `pieces` digests of parts of equal size, the i-th into state[i * kDigestStateWords].
void digest_into(const at::Tensor& contiguous, int64_t* state, int64_t pieces);
at::Tensor checksum(const at::Tensor& contiguous);  // int64 scalar on its device

}  // namespace faultline::numeric::portable
