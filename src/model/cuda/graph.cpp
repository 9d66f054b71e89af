#include "model/cuda/graph.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "base/error.h"
#ifdef FAULTLINE_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#endif

namespace faultline::model {
#ifdef FAULTLINE_WITH_CUDA
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // forget it
  throw RuntimeFailure(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

// We do not link libc10_cuda.so (one libfaultline.so serves CPU-only torch too); a process that has CUDA tensors has it
// loaded, and it exports the pointer to the allocator in use.
CUDAAllocator& torch_allocator() {
  static CUDAAllocator* const found = [] {
    void* library = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    void* symbol = library ? dlsym(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE") : nullptr;
    if (symbol == nullptr)
      throw RuntimeFailure("this process has no CUDA build of torch: libc10_cuda.so is not loaded");
    return static_cast<std::atomic<CUDAAllocator*>*>(symbol)->load();
  }();
  return *found;
}

// Torch numbers its pools from 1 upward; ours start where it will not come.
c10::MempoolId_t new_pool() {
  static std::atomic<c10::CaptureId_t> next{c10::CaptureId_t{1} << 62};
  return {0, next++};
}

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

cudaStream_t handle_of(const c10::Stream& stream) { return static_cast<cudaStream_t>(stream.native_handle()); }

// `later` starts after all that is on `earlier` now.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  cudaError_t error = cudaEventRecord(event, handle_of(earlier));
  if (error == cudaSuccess) error = cudaStreamWaitEvent(handle_of(later), event, 0);
  cudaEventDestroy(event);
  check(error, "cudaStreamWaitEvent");
}

// While it lives, allocations on one stream go to a pool.
class PoolGuard {
 public:
  PoolGuard(c10::DeviceIndex device, c10::MempoolId_t pool, cudaStream_t stream) : device_(device), pool_(pool) {
    torch_allocator().beginAllocateToPool(device, pool, [stream](cudaStream_t asked) { return asked == stream; });
  }
  ~PoolGuard() { torch_allocator().endAllocateToPool(device_, pool_); }
  PoolGuard(const PoolGuard&) = delete;
  PoolGuard& operator=(const PoolGuard&) = delete;

 private:
  c10::DeviceIndex device_;
  c10::MempoolId_t pool_;
};

}  // namespace

struct DecodeGraph::State {
  c10::Device device;
  c10::MempoolId_t pool{0, 0};
  cudaGraphExec_t executable = nullptr;

  explicit State(c10::Device on) : device(on) {}
  ~State() { clear(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void clear() {
    if (executable == nullptr) return;
    const c10::DeviceGuard guard(device);
    cudaDeviceSynchronize();  // a replay may still run in this memory
    cudaGraphExecDestroy(executable);
    executable = nullptr;
    torch_allocator().releasePool(device.index(), pool);
  }

  // Records the body on `side`, which is current.
  void record(const std::function<void()>& body, const c10::Stream& side) {
    const cudaStream_t stream = handle_of(side);
    const c10::MempoolId_t fresh = new_pool();
    cudaGraph_t graph = nullptr;
    std::exception_ptr failure;
    {
      const PoolGuard pool_guard(device.index(), fresh, stream);
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      try {
        body();
      } catch (...) {
        failure = std::current_exception();
      }
      const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
      if (ended != cudaSuccess) cudaGetLastError();
      if (!failure && ended != cudaSuccess)
        failure = std::make_exception_ptr(
            RuntimeFailure(fmt::format("the step cannot be recorded as a CUDA graph: {}", cudaGetErrorString(ended))));
    }
    cudaGraphExec_t made = nullptr;
    if (!failure) {
      const cudaError_t error = cudaGraphInstantiate(&made, graph, 0);
      if (error != cudaSuccess)
        failure =
            std::make_exception_ptr(RuntimeFailure(fmt::format("cudaGraphInstantiate: {}", cudaGetErrorString(error))));
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (failure) {
      torch_allocator().releasePool(device.index(), fresh);
      std::rethrow_exception(failure);
    }
    clear();
    executable = made;
    pool = fresh;
  }
};

DecodeGraph::DecodeGraph(c10::Device device) : state_(std::make_unique<State>(device)) {
  if (!device.is_cuda() || !device.has_index())
    throw UsageError(
        fmt::format("a decode graph lives on a CUDA device with an index, such as cuda:0; got {}", device.str()));
}

void DecodeGraph::capture(const std::function<void()>& body, int warmups) {
  const c10::Device device = state_->device;
  const c10::DeviceGuard device_guard(device);
  const c10::Stream outside = current_stream(device);
  const c10::Stream side = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
  order(outside, side);
  {
    const c10::StreamGuard stream_guard(side);
    for (int i = 0; i < warmups; ++i) body();
    check(cudaStreamSynchronize(handle_of(side)), "the step before it is recorded");
    state_->record(body, side);
  }
  order(side, outside);
}

void DecodeGraph::replay() {
  if (!is_captured()) throw UsageError("replay() before capture(): there is no recorded step");
  const c10::DeviceGuard guard(state_->device);
  check(cudaGraphLaunch(state_->executable, handle_of(current_stream(state_->device))), "cudaGraphLaunch");
}

bool DecodeGraph::is_captured() const { return state_ && state_->executable != nullptr; }
#else
struct DecodeGraph::State {};
DecodeGraph::DecodeGraph(c10::Device device) {
  throw UsageError(fmt::format("this build was made without nvcc; a decode graph on {} needs CUDA", device.str()));
}
void DecodeGraph::capture(const std::function<void()>&, int) {}
void DecodeGraph::replay() {}
bool DecodeGraph::is_captured() const { return false; }
#endif

DecodeGraph::~DecodeGraph() = default;
DecodeGraph::DecodeGraph(DecodeGraph&&) noexcept = default;
DecodeGraph& DecodeGraph::operator=(DecodeGraph&&) noexcept = default;

}  // namespace faultline::model
