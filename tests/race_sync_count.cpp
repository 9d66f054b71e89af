// LD_PRELOAD for tests/bench_race.py: counts how often the host waits for a GPU (torch's calls into the CUDA runtime)
// and says so when the process ends. No CUDA header is needed: the functions take pointers and return an integer.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>

namespace {

struct Counter {
  std::atomic<unsigned long> waits{0};
  ~Counter() { std::fprintf(stderr, "RACE_SYNC_COUNT %lu\n", waits.load()); }
} counter;

template <class Function>
Function real(const char* name) {
  ++counter.waits;
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int cudaStreamSynchronize(void* stream) { return real<int (*)(void*)>("cudaStreamSynchronize")(stream); }
extern "C" int cudaDeviceSynchronize() { return real<int (*)()>("cudaDeviceSynchronize")(); }
extern "C" int cudaEventSynchronize(void* event) { return real<int (*)(void*)>("cudaEventSynchronize")(event); }
extern "C" int cudaMemcpy(void* to, const void* from, unsigned long bytes, int kind) {
  return real<int (*)(void*, const void*, unsigned long, int)>("cudaMemcpy")(to, from, bytes, kind);
}
