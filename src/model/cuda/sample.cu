// Draws a token a row after Note [Sampling], with several blocks a row. Everything that blocks share is an integer sum
// or maximum, so the result does not depend on their order. Rows that top_k or top_p cut need the place of the cut: the
// 32-bit order of logits is narrowed by 11, 11 and 10 bits with histograms of count and mass; other rows skip these
// kernels. This file is compiled without contraction.
#include "model/cuda/sample.cuh"

namespace faultline::model::ops::cuda {
namespace {

// Reads the chunk's eight logits of this thread as usable logits; `count` of them exist.
template <class T>
__device__ __forceinline__ int load_logits(const SampleArguments& a, bool aligned, int64_t first,
                                           float (&logits)[kOctet], bool& has_nan) {
  const int64_t left = a.vocabulary - first;
  if (left <= 0) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) logits[i] = 0.0f;
    return 0;
  }
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

// Calls function(chunk, first index, logits, count, has_nan) for each chunk of this block, with all threads.
template <class T, class Function>
__device__ __forceinline__ void for_chunks(const SampleArguments& a, bool aligned, Function&& function) {
  for (int64_t chunk = blockIdx.x; chunk * kChunk < a.vocabulary; chunk += gridDim.x) {
    float logits[kOctet];
    bool has_nan = false;
    const int64_t first = first_of_thread(chunk);
    const int count = load_logits<T>(a, aligned, first, logits, has_nan);
    function(chunk, first, logits, count, has_nan);
  }
}

template <class T>
__global__ void __launch_bounds__(kSampleThreads) maximum_kernel(SampleArguments a, RowState* states, bool aligned) {
  begin_kernel();
  uint32_t highest = 0;
  bool any_nan = false;
  for_chunks<T>(a, aligned, [&](int64_t, int64_t, const float(&logits)[kOctet], int count, bool has_nan) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      if (i < count) highest = max(highest, sampling::order_of(logits[i]));
    }
    any_nan |= has_nan;
  });
  highest = __reduce_max_sync(0xFFFFFFFFu, highest);
  any_nan = __any_sync(0xFFFFFFFFu, any_nan);
  if (threadIdx.x % 32 != 0) return;
  atomicMax(&states[blockIdx.y].maximum, highest);
  if (any_nan) atomicOr(&states[blockIdx.y].has_nan, 1u);
}

// The better of `best` and the thread's kept tokens: score in the high word, then the lower index. All lanes of a warp
// come here together. Most noise is never worked out: -ln(-ln(1 - t)) is less than -ln t, so the leading zeros of a
// word bound it, and a token whose bound is below the best score of the warp cannot win.
__device__ __forceinline__ uint64_t better_of(uint64_t best, const Row& row, const float (&logits)[kOctet],
                                              uint32_t kept, int64_t first) {
#pragma unroll
  for (int group = 0; group < kOctet / 4; ++group) {
    if (!__any_sync(0xFFFFFFFFu, kept >> 4 * group & 15u)) continue;
    PhiloxWords words{};
    if (!row.greedy) words = sampling::noise_words(row.key, row.position, static_cast<uint32_t>(first / 4 + group));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * group + i;
      const uint32_t floor = __reduce_max_sync(0xFFFFFFFFu, static_cast<uint32_t>(best >> 32));
      const float below = logits[at] - row.maximum,
                  most = 0.6931472f * static_cast<float>(1 + __clz(words.word[i])) + 0.01f;
      const float bound = row.greedy ? below : sampling::gumbel_score(below, row.scale, most);
      if ((kept >> at & 1u) == 0 || sampling::order_of(bound) < floor) continue;
      const float score =
          row.greedy ? below : sampling::gumbel_score(below, row.scale, sampling::gumbel_of(words.word[i]));
      const uint64_t rank = static_cast<uint64_t>(sampling::order_of(score)) << 32 | ~static_cast<uint32_t>(first + at);
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
  if (row.is_cut) histogram.clear();
  uint64_t mass = 0, best = 0;
  for_chunks<T>(a, aligned, [&](int64_t, int64_t first, const float(&logits)[kOctet], int count, bool) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      if (i >= count) break;
      const uint64_t weight = sampling::fixed_weight(logits[i] - row.maximum, row.scale);
      mass += weight;
      if (row.is_cut) histogram.add(sampling::order_of(logits[i]) >> 21, weight);
    }
    if (!row.is_cut) best = better_of(best, row, logits, (1u << count) - 1, first);
  });
  mass = block_sum(mass);
  if (threadIdx.x == 0) atomicAdd(&state.total, mass);
  if (row.is_cut) return histogram.add_to(state.level[0]);
  best = block_max(best);
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
  constexpr int kAbove = kLevel == 1 ? 21 : 10, kBelow = kLevel == 1 ? 10 : 0;
  for_chunks<T>(a, aligned, [&](int64_t, int64_t, const float(&logits)[kOctet], int count, bool) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const uint32_t order = sampling::order_of(logits[i]);
      if (i >= count || order >> kAbove != cut.prefix) continue;
      histogram.add(order >> kBelow & ((1u << (kAbove - kBelow)) - 1),
                    sampling::fixed_weight(logits[i] - row.maximum, row.scale));
    }
  });
  histogram.add_to(state.level[kLevel]);
}

// Finds the last kept order and counts, by chunk, the tokens that have it.
template <class T>
__global__ void __launch_bounds__(kSampleThreads) ties_kernel(SampleArguments a, RowState* states, bool aligned) {
  begin_kernel();
  RowState& state = states[blockIdx.y];
  if (!row_of(a, state).is_cut) return;
  const Cut cut = narrowed(state.cut[1], state.level[2], 10);
  if (blockIdx.x == 0 && threadIdx.x == 0) state.cut[2] = cut;
  for_chunks<T>(a, aligned, [&](int64_t chunk, int64_t, const float(&logits)[kOctet], int count, bool) {
    uint32_t ties = 0;
    for (int i = 0; i < count; ++i) ties += sampling::order_of(logits[i]) == cut.prefix;
    ties = __reduce_add_sync(0xFFFFFFFFu, ties);
    if (threadIdx.x % 32 == 0 && ties > 0) atomicAdd(&state.ties[chunk], ties);
  });
}

__device__ __forceinline__ int64_t ties_before(const RowState& state, int64_t chunk) {
  uint64_t ties = 0;
  for (int64_t i = threadIdx.x; i < chunk; i += kSampleThreads) ties += state.ties[i];
  return static_cast<int64_t>(block_sum(ties));
}

// Draws from the kept tokens of a cut row.
template <class T>
__global__ void __launch_bounds__(kSampleThreads) draw_kernel(SampleArguments a, RowState* states, bool aligned) {
  begin_kernel();
  RowState& state = states[blockIdx.y];
  const Row row = row_of(a, state);
  if (!row.is_cut) return;
  const Cut cut = state.cut[2];
  const uint64_t weight = sampling::fixed_weight(sampling::logit_of(cut.prefix) - row.maximum, row.scale);
  const int64_t kept_ties = ties_kept(cut, weight);
  uint64_t best = 0;
  for_chunks<T>(a, aligned, [&](int64_t chunk, int64_t first, const float(&logits)[kOctet], int count, bool) {
    int64_t rank = 0;
    if (state.ties[chunk] > 0) {  // the same for all threads
      uint64_t ties = 0;
      for (int i = 0; i < count; ++i) ties += sampling::order_of(logits[i]) == cut.prefix;
      rank = ties_before(state, chunk) + static_cast<int64_t>(sum_of_earlier_threads(ties));
    }
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const uint32_t order = sampling::order_of(logits[i]);
      if (i < count && (order > cut.prefix || (order == cut.prefix && rank++ < kept_ties))) kept |= 1u << i;
    }
    best = better_of(best, row, logits, kept, first);
  });
  best = block_max(best);
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
  // About eight blocks for each of 132 multiprocessors, no more than there are chunks.
  const int64_t chunks = (a.vocabulary + kChunk - 1) / kChunk, wanted = (1056 + a.batch - 1) / a.batch;
  const int64_t least = (chunks + kMostChunks - 1) / kMostChunks;
  const int64_t blocks = wanted > chunks ? chunks : wanted < least ? least : wanted;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(a.batch));
  const bool aligned = is_aligned(a.logits, a.batch == 1 ? 0 : a.stride) && a.vocabulary % kOctet == 0;
  dispatch(a.element, [&](auto type) {
    using T = decltype(type);
    launch("sample", maximum_kernel<T>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", weigh_kernel<T>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", narrow_kernel<T, 1>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", narrow_kernel<T, 2>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", ties_kernel<T>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", draw_kernel<T>, grid, kSampleThreads, 0, stream, a, states, aligned);
    launch("sample", result_kernel<T>, blocks_of(a.batch, 32), 32, 0, stream, a, states);
  });
}

}  // namespace faultline::model::ops::cuda
