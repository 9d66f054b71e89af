// Mistakes for compute-sanitizer to find: a kernel of ours that races, one that writes out of bounds, and somebody else's
// that races. Without them its silence would prove nothing.
#include <cstdio>
#include <cstring>

__device__ void race(int* out) {
  __shared__ int pair[2];
  pair[threadIdx.x % 2] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = pair[(threadIdx.x + 1) % 2];
}

namespace faultline {
__global__ void races(int* out) { race(out); }
__global__ void writes_beyond(int* out) { out[threadIdx.x + (1 << 22)] = 1; }
}  // namespace faultline

namespace others {
__global__ void races(int* out) { race(out); }
}  // namespace others

int main(int count, char** arguments) {
  int* out = nullptr;
  if (count != 2 || cudaMalloc(&out, 64 * sizeof(int)) != cudaSuccess) return 1;
  if (std::strcmp(arguments[1], "race") == 0) faultline::races<<<1, 64>>>(out);
  if (std::strcmp(arguments[1], "beyond") == 0) faultline::writes_beyond<<<1, 64>>>(out);
  if (std::strcmp(arguments[1], "other") == 0) others::races<<<1, 64>>>(out);
  std::puts(cudaGetErrorString(cudaDeviceSynchronize()));
}
