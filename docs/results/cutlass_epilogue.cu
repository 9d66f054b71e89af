// What noise in the epilogue of a CUTLASS product would save, on an H200: a bf16 GEMM (fp32 sums) with its plain
// epilogue, with the plain epilogue and an in-place noise kernel after it (the traffic of faultline's tap, no ledger),
// and with the noise in an epilogue visitor. "drawn anew": one Philox block for the eight results a visit holds.
// "faultline's numbers": every pair of neighbours draws the block of eight that our counter gives it, four times the
// work, because a thread of a tensor-core tile holds only two of the eight. An experiment; nothing links it.
//   nvcc -std=c++17 -O3 -DNDEBUG -arch=sm_90a --expt-relaxed-constexpr -I CUTLASS/include cutlass_epilogue.cu -o cutlass_epilogue
#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"

using namespace cute;
namespace fusion = cutlass::epilogue::fusion;
using Bf16 = cutlass::bfloat16_t;

__device__ uint4 philox(uint32_t c0, uint32_t c1, uint32_t k0, uint32_t k1) {
  uint32_t c2 = 7, c3 = 3;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0, c1 = uint32_t(p1), c2 = uint32_t(p0 >> 32) ^ c3 ^ k1, c3 = uint32_t(p0);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}
// A segmented table look-up and one fma, as numeric/gaussian.h; the table holds strength-scaled slopes and bases.
__device__ float deviate(uint32_t half, const float2* table) {
  const float value = float(int32_t(half << 16 | 0x10000u) >> 16);
  const uint32_t bits = __float_as_uint(value), sign = bits & 0x80000000u;
  const float2 line = __ldg(table + ((bits >> 19) & 255));
  return fmaf(value, line.x, __uint_as_float(__float_as_uint(line.y) ^ sign));
}

template <bool kOurNumbers>
struct Noise : fusion::Sm90VisitorImpl<> {
  struct SharedStorage {};
  struct Arguments {
    const float2* table;
    int64_t columns;
  };
  using Params = Arguments;
  template <class Shape>
  static constexpr Params to_underlying_arguments(Shape const&, Arguments const& arguments, void*) { return arguments; }
  template <class Shape>
  static bool can_implement(Shape const&, Arguments const&) { return true; }
  template <class Shape>
  static size_t get_workspace_size(Shape const&, Arguments const&) { return 0; }
  template <class Shape>
  static cutlass::Status initialize_workspace(Shape const&, Arguments const&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) { return cutlass::Status::kSuccess; }
  CUTLASS_HOST_DEVICE Noise() {}
  CUTLASS_HOST_DEVICE Noise(Params const& given, SharedStorage const&) : params(given) {}
  Params params;

  template <class Coordinates>
  struct Callbacks : fusion::EmptyConsumerStoreCallbacks {
    CUTLASS_DEVICE Callbacks(Coordinates c, int r, int n, Params p) : coordinates(c), row(r), column(n), params(p) {}
    Coordinates coordinates;
    int row, column;
    Params params;
    template <class Accumulator, class Input, int kSize>
    CUTLASS_DEVICE cutlass::Array<float, kSize> visit(cutlass::Array<Accumulator, kSize> const&, int v, int m, int n,
                                                      cutlass::Array<Input, kSize> const& x) {
      cutlass::Array<float, kSize> y;
      const auto here = coordinates(_, _, _, m, n);
      uint4 words;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (i % (kOurNumbers ? 2 : 8) == 0) {
          const auto at = here(v * kSize + i);
          const uint64_t index = uint64_t(row + get<0>(at)) * params.columns + (column + get<1>(at));
          words = philox(uint32_t(index >> 3), kOurNumbers ? 0u : uint32_t(index) & 7u, 0x12345678u, 0x9ABCDEFu);
          if (kOurNumbers) words.x = index & 4 ? (index & 2 ? words.w : words.z) : index & 2 ? words.y : words.x;
        }
        const int part = kOurNumbers ? i % 2 : i % 8;
        const uint32_t word = (&words.x)[part / 2];
        y[i] = fmaf(deviate(part % 2 ? word >> 16 : word & 0xFFFFu, params.table), float(x[i]), float(x[i]));
      }
      return y;
    }
  };
  template <bool kReference, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::ConsumerStoreArgs<Args...> const& args) {
    auto [M, N, K, L] = args.problem_shape_mnkl;
    return Callbacks<decltype(args.tCcD)>(args.tCcD, int(M - get<0>(args.residue_tCcD)), int(N - get<1>(args.residue_tCcD)), params);
  }
};

template <class Fusion>
struct Multiplication {
  using Tile = Shape<_128, _256, _64>;
  using Cluster = Shape<_2, _1, _1>;
  using Row = cutlass::layout::RowMajor;
  using Column = cutlass::layout::ColumnMajor;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
      float, float, void, Row, 8, Bf16, Row, 8, cutlass::epilogue::TmaWarpSpecializedCooperative, Fusion>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, Row, 8, Bf16, Column, 8, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<
      cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>>;
  Gemm gemm;
  Multiplication(int m, int n, int k, Bf16* a, Bf16* b, Bf16* d, typename Epilogue::FusionCallbacks::Arguments fused) {
    using Kernel = typename Gemm::GemmKernel;
    typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm, {m, n, k, 1},
        {a, cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {m, k, 1}), b, cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {n, k, 1})},
        {fused, nullptr, {}, d, cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {m, n, 1})}};
    void* workspace = nullptr;
    cudaMalloc(&workspace, std::max<size_t>(16, Gemm::get_workspace_size(arguments)));
    if (gemm.can_implement(arguments) != cutlass::Status::kSuccess || gemm.initialize(arguments, workspace) != cutlass::Status::kSuccess)
      std::printf("the product was refused\n"), std::exit(1);
  }
};

__global__ void add_noise(uint4* values, int64_t blocks, const float2* table) {  // eight results a thread and round
  for (int64_t b = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; b < blocks; b += int64_t{gridDim.x} * blockDim.x) {
    const uint4 words = philox(uint32_t(b), 0, 0x12345678u, 0x9ABCDEFu);
    uint4 bits = values[b];
    auto* pair = reinterpret_cast<__nv_bfloat162*>(&bits);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = __bfloat1622float2(pair[i]);
      const uint32_t word = (&words.x)[i];
      pair[i] = __floats2bfloat162_rn(fmaf(deviate(word & 0xFFFFu, table), x.x, x.x), fmaf(deviate(word >> 16, table), x.y, x.y));
    }
    values[b] = bits;
  }
}
__global__ void fill(Bf16* values, int64_t count, uint32_t key) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    values[i] = Bf16((int32_t(philox(uint32_t(i), 0, key, 1).x) >> 16) * 0x1p-17f);
}

template <class Function>
double microseconds(Function&& function) {
  cudaEvent_t start, stop;
  cudaEventCreate(&start), cudaEventCreate(&stop);
  std::vector<float> times;
  for (int round = 0; round < 25; ++round) {
    cudaEventRecord(start);
    for (int i = 0; i < 10; ++i) function();
    cudaEventRecord(stop), cudaEventSynchronize(stop);
    float ms = 0;
    cudaEventElapsedTime(&ms, start, stop);
    if (round >= 5) times.push_back(ms * 100);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

int main() {
  std::vector<float2> lines(256);  // z grows with |f|: a rough inverse CDF is enough for timing; sigma is printed
  for (int i = 0; i < 240; ++i) lines[(127 * 16 + i) & 255] = {0.05f * 1.7320508f / 32768, 0};  // uniform, sigma 0.05
  float2* table = nullptr;
  cudaMalloc(&table, 256 * sizeof(float2));
  cudaMemcpy(table, lines.data(), 256 * sizeof(float2), cudaMemcpyHostToDevice);
  for (const auto& shape : {std::array{4096, 8960, 1536}, std::array{4096, 1536, 8960}}) {
    const int m = shape[0], n = shape[1], k = shape[2];
    Bf16 *a, *b, *d, *e;
    cudaMalloc(&a, 2ll * m * k), cudaMalloc(&b, 2ll * n * k), cudaMalloc(&d, 2ll * m * n), cudaMalloc(&e, 2ll * m * n);
    fill<<<1024, 256>>>(a, int64_t{m} * k, 1), fill<<<1024, 256>>>(b, int64_t{n} * k, 2);
    Multiplication<fusion::LinearCombination<Bf16, float, void, float>> plain(m, n, k, a, b, d, {1.0f, 0.0f});
    Multiplication<fusion::Sm90EVT<Noise<false>, fusion::Sm90AccFetch>> anew(m, n, k, a, b, e, {{}, {table, n}});
    Multiplication<fusion::Sm90EVT<Noise<true>, fusion::Sm90AccFetch>> ours(m, n, k, a, b, e, {{}, {table, n}});
    const auto noise = [&] { add_noise<<<132 * 8, 256>>>(reinterpret_cast<uint4*>(d), int64_t{m} * n / 8, table); };
    const double base = microseconds([&] { plain.gemm.run(); });
    const double separate = microseconds([&] { plain.gemm.run(), noise(); });
    const double fused = microseconds([&] { anew.gemm.run(); }), same = microseconds([&] { ours.gemm.run(); });
    plain.gemm.run(), ours.gemm.run();
    std::vector<Bf16> clean(1 << 20), noisy(1 << 20);
    cudaMemcpy(clean.data(), d, clean.size() * 2, cudaMemcpyDeviceToHost), cudaMemcpy(noisy.data(), e, noisy.size() * 2, cudaMemcpyDeviceToHost);
    double sum = 0, count = 0;
    for (size_t i = 0; i < clean.size(); ++i)
      if (float(clean[i]) != 0) sum += std::pow(float(noisy[i]) / float(clean[i]) - 1, 2.0), count += 1;
    std::printf("%dx%dx%d: plain %.1f us (%.0f TFLOP/s); + noise kernel %.1f us (%+.1f %%); epilogue, drawn anew %.1f us (%+.1f %%); epilogue, faultline's numbers %.1f us (%+.1f %%); realised strength %.4f; %s\n",
                m, n, k, base, 2e-6 * m * n * k / base, separate, 100 * (separate / base - 1), fused, 100 * (fused / base - 1), same, 100 * (same / base - 1), std::sqrt(sum / count), cudaGetErrorString(cudaDeviceSynchronize()));
    cudaFree(a), cudaFree(b), cudaFree(d), cudaFree(e);
  }
}
