// libfaultline_nccl.so: torch's process group over NCCL. A library of its own because it links torch_cuda, which
// libfaultline.so does not: one libfaultline.so serves CPU-only and CUDA wheels. Communicators are made by the first
// collective, on the GPU of its tensors; wait() orders streams and does not hold up the host.
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "cluster/nccl/interface.h"

c10d::Backend* faultline_make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks,
                                   std::int64_t timeout_ms) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(timeout_ms);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, ranks, options).release();
}
