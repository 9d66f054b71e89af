// The fault kernels for one dtype; a file each, so that they compile in parallel.
#include "numeric/cuda/faults.cuh"

namespace faultline::numeric::cuda {

void fault_bf16(const FaultArguments& a, const Traversal& traversal, void* data, const Evidence& evidence,
                cudaStream_t stream) {
  launch_fault<BFloat16>(a, traversal, data, evidence, stream);
}

}  // namespace faultline::numeric::cuda
