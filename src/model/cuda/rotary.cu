// Rotary embeddings and the store of new keys and values into the cache: both walk over the heads of a token, eight
// elements a thread (the rotation takes eight of each half).
#include "model/cuda/element.cuh"

namespace faultline::model::ops::cuda {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) rotary_kernel(RotaryArguments a, bool aligned) {
  begin_kernel();
  const int64_t half = a.head_size / 2, per_head = (half + kOctet - 1) / kOctet, turned = a.heads * a.head_size;
  const int64_t turns = a.heads * per_head, copies = (a.rest + kOctet - 1) / kOctet;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t token = unit / (turns + copies), part = unit % (turns + copies);
  if (token >= a.tokens) return;
  const T* x = static_cast<const T*>(a.x) + token * a.stride;
  T* out = static_cast<T*>(a.out) + token * (turned + a.rest);
  float first[kOctet], second[kOctet], c[kOctet], s[kOctet];
  if (part >= turns) {
    const int64_t column = turned + (part - turns) * kOctet, count = turned + a.rest - column;
    load_octet(x + column, count, aligned, first);
    store_octet(out + column, count, aligned, first);
    return;
  }
  const int64_t begin = part % per_head * kOctet, column = part / per_head * a.head_size + begin, count = half - begin;
  const int64_t position = min(max(a.positions[token], int64_t{0}), a.context - 1);
  load_octet(x + column, count, aligned, first);
  load_octet(x + column + half, count, aligned, second);
  load_octet(a.cos + position * half + begin, count, aligned, c);
  load_octet(a.sin + position * half + begin, count, aligned, s);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const float turned_first = first[i] * c[i] - second[i] * s[i];
    second[i] = second[i] * c[i] + first[i] * s[i];
    first[i] = turned_first;
  }
  store_octet(out + column, count, aligned, first);
  store_octet(out + column + half, count, aligned, second);
}

template <class Word>
__global__ void __launch_bounds__(kThreads) store_kernel(StoreArguments a, int64_t words_per_head) {
  begin_kernel();
  const int64_t per_token = a.kv_heads * words_per_head;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t token = unit / per_token, word = unit % per_token;
  if (token >= a.tokens) return;
  const int64_t row = a.rows[token], position = a.positions[token];
  if (position < 0 || position >= a.context || row < 0 || row >= a.cache_rows) return;
  const int64_t head = word / words_per_head;
  const int64_t to = ((row * a.kv_heads + head) * a.context + position) * words_per_head + word % words_per_head;
  const int64_t bytes = a.element_size, ratio = static_cast<int64_t>(sizeof(Word));
  static_cast<Word*>(a.key_cache)[to] = static_cast<const Word*>(a.key)[token * a.key_stride * bytes / ratio + word];
  static_cast<Word*>(a.value_cache)[to] =
      static_cast<const Word*>(a.value)[token * a.value_stride * bytes / ratio + word];
}

template <class Word>
void store_words(const StoreArguments& a, void* stream) {
  const int64_t words = a.head_size * a.element_size / static_cast<int64_t>(sizeof(Word));
  launch("store_kv_", store_kernel<Word>, blocks_of(a.tokens * a.kv_heads * words, kThreads), kThreads, 0, stream, a,
         words);
}

}  // namespace

void rotary(const RotaryArguments& a, void* stream) {
  const int64_t half = a.head_size / 2;
  const int64_t units = a.tokens * (a.heads * ((half + kOctet - 1) / kOctet) + (a.rest + kOctet - 1) / kOctet);
  if (units == 0) return;
  const bool aligned = is_aligned(a.x, a.stride) && is_aligned(a.out, half) && a.rest % kOctet == 0 &&
                       is_aligned(a.cos) && is_aligned(a.sin);
  dispatch(a.element, [&](auto type) {
    launch("rotary", rotary_kernel<decltype(type)>, blocks_of(units, kThreads), kThreads, 0, stream, a, aligned);
  });
}

void store_kv(const StoreArguments& a, void* stream) {
  if (a.tokens == 0 || a.kv_heads == 0 || a.head_size == 0) return;
  const int64_t size = a.element_size;
  const bool wide = is_aligned(a.key) && is_aligned(a.value) && is_aligned(a.key_cache) && is_aligned(a.value_cache) &&
                    a.key_stride * size % 16 == 0 && a.value_stride * size % 16 == 0 && a.head_size * size % 16 == 0;
  if (wide) {
    store_words<uint4>(a, stream);
  } else if (size == 4) {
    store_words<uint32_t>(a, stream);
  } else {
    store_words<uint16_t>(a, stream);
  }
}

}  // namespace faultline::model::ops::cuda
