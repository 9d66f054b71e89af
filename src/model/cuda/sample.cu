// Draws a token a row after Note [Sampling], with several blocks a row. Everything that blocks share is an integer sum
// or maximum, so the result does not depend on their order. Rows that top_k or top_p cut need the place of the cut: the
// 32-bit order of logits is narrowed by 11, 11 and 10 bits with histograms of count and mass; other rows skip these
// kernels. This file is compiled without contraction.
#include "model/cuda/sample.cuh"

namespace faultline::ops::cuda {
namespace {

// Reads the chunk's eight logits of this thread as usable logits; `count` of them exist.
template <class T>
__device__ __forceinline__ int load_logits(const SampleArguments& a, bool aligned, int64_t first,
                                           float (&logits)[kOctet], bool& has_nan) {
  const int64_t left = a.vocabulary - first;
  if (left <= 0) return 0;
  load_octet(static_cast<const T*>(a.logits) + blockIdx.y * a.stride + first, left, aligned, logits);
  const int count = left < kOctet ? static_cast<int>(left) : kOctet;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    if (i < count) has_nan |= logits[i] != logits[i];
    logits[i] = sampling::usable_logit(logits[i]);
  }
  return count;
}

__device__ __forceinline__ int64_t first_of_thread(int64_t chunk) { return chunk * kChunk + threadIdx.x * kOctet; }

template <class T>
__global__ void __launch_bounds__(kSampleThreads) maximum_kernel(SampleArguments a, RowState* states, bool aligned) {
  begin_kernel();
  float logits[kOctet];
  bool has_nan = false;
  const int count = load_logits<T>(a, aligned, first_of_thread(blockIdx.x), logits, has_nan);
  uint32_t highest = 0;
  for (int i = 0; i < count; ++i) highest = max(highest, sampling::order_of(logits[i]));
  highest = __reduce_max_sync(0xFFFFFFFFu, highest);
  has_nan = __any_sync(0xFFFFFFFFu, has_nan);
  if (threadIdx.x % 32 != 0) return;
  atomicMax(&states[blockIdx.y].maximum, highest);
  if (has_nan) atomicOr(&states[blockIdx.y].has_nan, 1u);
}

// The best of the thread's kept tokens: score in the high word, then the lower index.
__device__ __forceinline__ uint64_t best_of(const Row& row, const float (&logits)[kOctet], uint32_t kept,
                                            int64_t first) {
  uint64_t best = 0;
  if (kept == 0) return best;
#pragma unroll
  for (int group = 0; group < kOctet / 4; ++group) {
    PhiloxWords words{};
    if (!row.greedy) words = sampling::noise_words(row.key, row.position, static_cast<uint32_t>(first / 4 + group));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * group + i;
      if ((kept >> at & 1u) == 0) continue;
      const float below = logits[at] - row.maximum;
      const float score =
          row.greedy ? below : sampling::gumbel_score(below, row.scale, sampling::gumbel_of(words.word[i]));
      const uint64_t rank =
          static_cast<uint64_t>(sampling::order_of(score)) << 32 | (~static_cast<uint32_t>(first + at));
      best = rank > best ? rank : best;
    }
  }
  return best;
}

// Adds up the mass; draws where nothing is cut, else makes the first histogram.
template <class T>
__global__ void __launch_bounds__(kSampleThreads) weigh_kernel(SampleArguments a, RowState* states, bool aligned) {
  begin_kernel();
  __shared__ Histogram histogram;
  RowState& state = states[blockIdx.y];
  const Row row = row_of(a, state);
  float logits[kOctet];
  bool has_nan = false;
  const int64_t first = first_of_thread(blockIdx.x);
  const int count = load_logits<T>(a, aligned, first, logits, has_nan);
  if (row.is_cut) histogram.clear();
  uint64_t mass = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t weight = sampling::fixed_weight(logits[i] - row.maximum, row.scale);
    mass += weight;
    if (row.is_cut) histogram.add(sampling::order_of(logits[i]) >> 21, weight);
  }
  mass = block_sum(mass);
  if (threadIdx.x == 0) atomicAdd(&state.total, mass);
  if (row.is_cut) return histogram.add_to(state.level[0]);
  const uint64_t best = block_max(best_of(row, logits, (1u << count) - 1, first));
  if (threadIdx.x == 0) atomicMax(&state.best, best);
}

// Chooses the bin of the level above and counts the next bits of the logits inside it.
template <class T, int kLevel>
__global__ void __launch_bounds__(kSampleThreads) narrow_kernel(SampleArguments a, RowState* states, bool aligned) {
  begin_kernel();
  __shared__ Histogram histogram;
  RowState& state = states[blockIdx.y];
  const Row row = row_of(a, state);
  if (!row.is_cut) return;
  const Cut cut = narrowed(kLevel == 1 ? whole_row(a, state) : state.cut[0], state.level[kLevel - 1], 11);
  if (blockIdx.x == 0 && threadIdx.x == 0) state.cut[kLevel - 1] = cut;
  histogram.clear();
  float logits[kOctet];
  bool has_nan = false;
  const int count = load_logits<T>(a, aligned, first_of_thread(blockIdx.x), logits, has_nan);
  constexpr int kAbove = kLevel == 1 ? 21 : 10, kBelow = kLevel == 1 ? 10 : 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t order = sampling::order_of(logits[i]);
    if (order >> kAbove != cut.prefix) continue;
    histogram.add(order >> kBelow & ((1u << (kAbove - kBelow)) - 1),
                  sampling::fixed_weight(logits[i] - row.maximum, row.scale));
  }
  histogram.add_to(state.level[kLevel]);
}

// How many tokens equal to the last kept one stand before this block's chunk.
template <class T>
__device__ int64_t ties_before(const SampleArguments& a, bool aligned, uint32_t order) {
  int64_t ties = 0;
  for (int64_t chunk = 0; chunk < blockIdx.x; ++chunk) {
    float logits[kOctet];
    bool has_nan = false;
    const int count = load_logits<T>(a, aligned, first_of_thread(chunk), logits, has_nan);
    for (int i = 0; i < count; ++i) ties += sampling::order_of(logits[i]) == order;
  }
  return static_cast<int64_t>(block_sum(static_cast<uint64_t>(ties)));
}

// Draws from the kept tokens of a cut row.
template <class T>
__global__ void __launch_bounds__(kSampleThreads) draw_kernel(SampleArguments a, RowState* states, bool aligned) {
  begin_kernel();
  RowState& state = states[blockIdx.y];
  const Row row = row_of(a, state);
  if (!row.is_cut) return;
  const Cut cut = narrowed(state.cut[1], state.level[2], 10);
  const uint64_t weight = sampling::fixed_weight(sampling::logit_of(cut.prefix) - row.maximum, row.scale);
  const int64_t present = state.level[2].count[cut.prefix & 1023u], kept_ties = ties_kept(cut, weight);
  const int64_t before = kept_ties < present ? ties_before<T>(a, aligned, cut.prefix) : 0;
  float logits[kOctet];
  bool has_nan = false;
  const int64_t first = first_of_thread(blockIdx.x);
  const int count = load_logits<T>(a, aligned, first, logits, has_nan);
  uint64_t ties = 0;
  for (int i = 0; i < count; ++i) ties += sampling::order_of(logits[i]) == cut.prefix;
  int64_t rank = before + static_cast<int64_t>(sum_of_earlier_threads(ties));
  uint32_t kept = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t order = sampling::order_of(logits[i]);
    if (order > cut.prefix || (order == cut.prefix && rank++ < kept_ties)) kept |= 1u << i;
  }
  const uint64_t best = block_max(best_of(row, logits, kept, first));
  if (threadIdx.x == 0 && best != 0) atomicMax(&state.best, best);
}

template <class T>
__global__ void __launch_bounds__(32) result_kernel(SampleArguments a, const RowState* states) {
  begin_kernel();
  const int64_t b = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  if (b >= a.batch) return;
  const RowState& state = states[b];
  const auto token = static_cast<int64_t>(~static_cast<uint32_t>(state.best));
  const float logit = sampling::usable_logit(to_float(static_cast<const T*>(a.logits)[b * a.stride + token]));
  const float scale = sampling::inverse_temperature(a.temperature[b]);
  const float below = logit - sampling::logit_of(state.maximum);
  a.token[b] = token;
  a.log_probability[b] = state.has_nan ? NAN : sampling::log_probability(below, scale, state.total);
}

}  // namespace

int64_t sample_scratch(int64_t batch) { return batch * static_cast<int64_t>(sizeof(RowState)); }

void sample(const SampleArguments& a, void* stream) {
  if (a.batch == 0) return;
  auto* states = static_cast<RowState*>(a.scratch);
  const dim3 grid(blocks_of(a.vocabulary, kChunk), static_cast<unsigned>(a.batch));
  const bool aligned = is_aligned(a.logits, a.batch == 1 ? 0 : a.stride) && a.vocabulary % kOctet == 0;
  dispatch(a.element, [&](auto type) {
    using T = decltype(type);
    launch("sample", maximum_kernel<T>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", weigh_kernel<T>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", narrow_kernel<T, 1>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", narrow_kernel<T, 2>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", draw_kernel<T>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", result_kernel<T>, blocks_of(a.batch, 32), 32, 0, stream, a, states);
  });
}

}  // namespace faultline::ops::cuda
