// The tables of the normal deviates in device memory, and the entry point of the fault kernels.
#include "numeric/cuda/faults.cuh"

namespace faultline::cuda {
namespace {

__device__ const Segment kTable16[kSegments16] = {
#define FL_GAUSSIAN_16
#include "numeric/gaussian_table.inc"
#undef FL_GAUSSIAN_16
};
__device__ const Segment kTable32[kSegments32] = {
#define FL_GAUSSIAN_32
#include "numeric/gaussian_table.inc"
#undef FL_GAUSSIAN_32
};

// Module addresses differ per device; one look-up a device, then cached.
template <class Symbol>
const Segment* address_of(const Symbol& symbol) {
  void* address = nullptr;
  const cudaError_t error = cudaGetSymbolAddress(&address, symbol);
  if (error != cudaSuccess)
    throw RuntimeFailure(std::string("cannot find the table of deviates: ") + cudaGetErrorString(error));
  return static_cast<const Segment*>(address);
}

}  // namespace

const Segment* device_table16() { return address_of(kTable16); }
const Segment* device_table32() { return address_of(kTable32); }

void fault_f32(const FaultArguments&, const Traversal&, void*, const Evidence&, cudaStream_t);
void fault_bf16(const FaultArguments&, const Traversal&, void*, const Evidence&, cudaStream_t);
void fault_f16(const FaultArguments&, const Traversal&, void*, const Evidence&, cudaStream_t);

void fault(const FaultArguments& a, const Traversal& traversal, void* data, const Evidence& evidence, void* stream) {
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  switch (a.dtype) {
    case Dtype::kFloat32: return fault_f32(a, traversal, data, evidence, cuda_stream);
    case Dtype::kBFloat16: return fault_bf16(a, traversal, data, evidence, cuda_stream);
    case Dtype::kFloat16: return fault_f16(a, traversal, data, evidence, cuda_stream);
    case Dtype::kFloat64: FL_ASSERT(!"fp64 faults are a CPU matter");
  }
}

}  // namespace faultline::cuda
