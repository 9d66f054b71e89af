// The tables of the normal deviates in device memory, and the entry point of the fault kernels.
#include <optional>

#include "numeric/cuda/faults.cuh"

namespace faultline::numeric::cuda {
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

// What differs per device and never changes there; a thread looks each up once.
template <class Value, class Find>
const Value& of_device(std::vector<std::optional<Value>>& known, const Find& find) {
  int device = 0;
  (void)cudaGetDevice(&device);
  if (known.size() <= static_cast<std::size_t>(device)) known.resize(static_cast<std::size_t>(device) + 1);
  std::optional<Value>& value = known[static_cast<std::size_t>(device)];
  if (!value) value = find(device);
  return *value;
}

template <class Symbol>
const Segment* address_of(const Symbol& symbol) {
  thread_local std::vector<std::optional<const Segment*>> known;
  return of_device(known, [&](int) {
    void* found = nullptr;
    const cudaError_t error = cudaGetSymbolAddress(&found, symbol);
    if (error != cudaSuccess)
      throw RuntimeFailure(std::string("cannot find the table of deviates: ") + cudaGetErrorString(error));
    return static_cast<const Segment*>(found);
  });
}

}  // namespace

bool kernels_overlap() {
  thread_local std::vector<std::optional<bool>> known;
  return of_device(known, [](int device) {
    int major = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9;
  });
}

const Segment* device_table16() { return address_of(kTable16); }
const Segment* device_table32() { return address_of(kTable32); }

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  (void)cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  return status != cudaStreamCaptureStatusNone;
}

void* allocate(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (error != cudaSuccess)
    throw RuntimeFailure(std::string("cannot allocate a table on the GPU: ") + cudaGetErrorString(error));
  return memory;
}
void release(void* memory) { (void)cudaFree(memory); }

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

}  // namespace faultline::numeric::cuda
