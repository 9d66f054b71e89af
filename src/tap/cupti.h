// CUPTI, as far as kernel launches need it: NVIDIA's tracing library, loaded when a window of launches is opened and
// never linked. What is declared here is the public interface of CUPTI 12.6 to 13.4: in those versions a kernel's
// record only grew at its end, so the fields below lie where they always lay. A version that is not known is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace faultline::tap {

using CuptiResult = int;
constexpr CuptiResult kCuptiSuccess = 0, kCuptiEndOfBuffer = 12, kCuptiHeldByAnother = 39;

enum class CuptiActivity : uint32_t { kConcurrentKernel = 10 };
enum class CuptiDomain : int { kDriver = 1, kRuntime = 2 };
constexpr uint32_t kCuptiFlushForced = 1;

// CUpti_ActivityKernel9 to 13, up to the last field that is read.
struct alignas(8) CuptiKernel {
  uint32_t kind;
  uint8_t caches[12];
  uint64_t start, end;  // ns; both 0: no time could be taken
  uint64_t completed;
  uint32_t device, context, stream;
  int32_t shape[10];  // grid, block, memory
  uint32_t correlation;
  int64_t grid;
  const char* name;  // mangled; CUPTI's, and gone when the module is unloaded
  void* reserved;
  uint64_t queued, submitted;
  uint8_t launch[8];
  uint64_t graph_node;  // 0: not of a graph
  uint32_t memory_limit;
  uint32_t graph;
};
static_assert(offsetof(CuptiKernel, start) == 16 && offsetof(CuptiKernel, device) == 40);
static_assert(offsetof(CuptiKernel, correlation) == 92 && offsetof(CuptiKernel, name) == 104);
static_assert(offsetof(CuptiKernel, graph_node) == 144 && offsetof(CuptiKernel, graph) == 156);

// CUpti_CallbackData: what a callback is told of an API call.
struct alignas(8) CuptiCall {
  int32_t site;  // 0: the call begins
  const char* function;
  const void* parameters;
  void* result;
  const char* kernel;
  void* context;
  uint32_t context_number;
  uint64_t* kept;
  uint32_t correlation;  // that of the kernel's record
};
static_assert(offsetof(CuptiCall, context_number) == 48 && offsetof(CuptiCall, correlation) == 64);

// The functions by their names in CUPTI, without the prefix.
struct Cupti {
  using Requested = void (*)(uint8_t** buffer, std::size_t* size, std::size_t* most_records);
  using Completed = void (*)(void* context, uint32_t stream, uint8_t* buffer, std::size_t size, std::size_t valid);
  using Callback = void (*)(void* user, int domain, uint32_t id, const void* data);

  CuptiResult (*GetVersion)(uint32_t* version) = nullptr;
  CuptiResult (*GetResultString)(CuptiResult result, const char** text) = nullptr;
  CuptiResult (*Subscribe)(void** subscriber, Callback callback, void* user) = nullptr;
  CuptiResult (*Unsubscribe)(void* subscriber) = nullptr;
  CuptiResult (*EnableCallback)(uint32_t enable, void* subscriber, CuptiDomain domain, uint32_t call) = nullptr;
  CuptiResult (*ActivityRegisterCallbacks)(Requested requested, Completed completed) = nullptr;
  CuptiResult (*ActivityEnable)(CuptiActivity kind) = nullptr;
  CuptiResult (*ActivityDisable)(CuptiActivity kind) = nullptr;
  CuptiResult (*ActivityFlushAll)(uint32_t flag) = nullptr;
  CuptiResult (*ActivityGetNextRecord)(uint8_t* buffer, std::size_t valid, void** record) = nullptr;
  CuptiResult (*ActivityGetNumDroppedRecords)(void* context, uint32_t stream, std::size_t* dropped) = nullptr;
};

// By cuptiGetVersion: CUDA 12.6 to 12.9, 13.0 to 13.4.
constexpr bool is_known_cupti(uint32_t version) {
  return (version >= 24 && version <= 28) || (version >= 130000 && version < 130500);
}

// Every call that launches a kernel, by CUPTI's numbers: cudaLaunchKernel, cuLaunchKernelEx, cooperative ones, …
constexpr uint32_t kRuntimeLaunches[] = {211, 214, 269, 270, 430, 431, 505, 506};
constexpr uint32_t kDriverLaunches[] = {307, 442, 477, 478, 652, 653};

// The library that this process has mapped already (libtorch_cpu.so of a CUDA wheel links it), else the one beside
// torch (nvidia/*/lib), else the toolkit's. Loaded once. nullptr: there is none, and `why` says so.
const Cupti* load_cupti(std::string& why);

}  // namespace faultline::tap
