// One new token attends to its past. The filled part of the cache is walked once, in chunks of positions whose scores
// fit in the first-level cache; largest score, sum and weighted values are carried on and rescaled (the "online"
// softmax of flash attention). Query heads that share a key/value head share its loads.
#include "model/cpu/dispatch.h"

namespace faultline::model::ops::cpu::FAULTLINE_ISA {
namespace {

constexpr int64_t kChunk = 128;  // positions; a multiple of every vector length
constexpr int64_t kAhead = 32;   // positions under way from memory

template <int kHeads>
struct State {
  alignas(64) float query[kHeads][kMaxHeadSize] = {};  // times scale
  alignas(64) float value[kHeads][kMaxHeadSize] = {};  // sum of weight * value
  alignas(64) float weight[kHeads][kChunk];            // scores, then their exponentials
  float largest[kHeads];
  float sum[kHeads];
};

// Keys or values of one chunk, and what is read after them.
template <class Scalar>
struct Rows {
  const Scalar* first;
  int64_t count, size;
  const Scalar* next;

  FL_INLINE void fetch(int64_t position) const {
    const int64_t later = position + kAhead;
    const Scalar* row = later < count ? first + later * size : next + (later - count) * size;
    for (int64_t d = 0; d < size; d += 64 / static_cast<int64_t>(sizeof(Scalar))) __builtin_prefetch(row + d);
  }
};

// kPositions positions from `position` on.
template <class Type, int kHeads, int kPositions, class Scalar = typename Type::Storage>
FL_INLINE void score(State<kHeads>& s, const Rows<Scalar>& keys, int64_t position) {
  const int64_t size = keys.size;
  const Scalar* key = keys.first + position * size;
  for (int i = 0; i < kPositions; ++i) keys.fetch(position + i);
  Vector dot[kHeads][kPositions] = {};
  for (int64_t d = 0; d < size; d += kLanes) {
    Vector k[kPositions];
    for (int i = 0; i < kPositions; ++i) k[i] = load<Type>(key + i * size + d, size - d);
    for (int h = 0; h < kHeads; ++h) {
      const Vector query = Float32::load(s.query[h] + d);
      for (int i = 0; i < kPositions; ++i) dot[h][i] = multiply_add(query, k[i], dot[h][i]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    if constexpr (kPositions == 4) {
      const Four sums = add_lanes(dot[h]);
      __builtin_memcpy(s.weight[h] + position, &sums, sizeof sums);
    } else {
      s.weight[h][position] = add_lanes(dot[h][0]);
    }
  }
}

template <class Type, int kHeads, class Scalar = typename Type::Storage>
void score_all(State<kHeads>& s, const Rows<Scalar>& keys) {
  int64_t position = 0;
  for (; position + 4 <= keys.count; position += 4) score<Type, kHeads, 4>(s, keys, position);
  for (; position < keys.count; ++position) score<Type, kHeads, 1>(s, keys, position);
}

template <int kHeads>
void exponentiate(State<kHeads>& s, int64_t count, int64_t size) {
  const float lowest = -__builtin_inff();
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t p = count; p % kLanes != 0; ++p) s.weight[h][p] = lowest;  // no weight
    Vector largest = broadcast(s.largest[h]);
    for (int64_t p = 0; p < count; p += kLanes) largest = larger(largest, Float32::load(s.weight[h] + p));
    const float now = largest_lane(largest);
    const Vector rescale = exponential(broadcast(s.largest[h] - now));
    Vector sum = {};
    for (int64_t p = 0; p < count; p += kLanes) {
      const Vector weight = exponential(Float32::load(s.weight[h] + p) - now);
      Float32::store(s.weight[h] + p, weight);
      sum += weight;
    }
    s.sum[h] = s.sum[h] * rescale[0] + add_lanes(sum);
    s.largest[h] = now;
    for (int64_t d = 0; d < size; d += kLanes) Float32::store(s.value[h] + d, Float32::load(s.value[h] + d) * rescale);
  }
}

// Vectors [d, d + kVectors * kLanes) of the values.
template <class Type, int kHeads, int kVectors, class Scalar = typename Type::Storage>
FL_INLINE void add_values(State<kHeads>& s, const Rows<Scalar>& values, int64_t d) {
  const int64_t size = values.size;
  Vector sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) sum[h][i] = Float32::load(s.value[h] + d + i * kLanes);
  }
  for (int64_t position = 0; position < values.count; ++position) {
    const Scalar* value = values.first + position * size;
    if (d == 0) values.fetch(position);
    Vector v[kVectors];
    for (int i = 0; i < kVectors; ++i) v[i] = load<Type>(value + d + i * kLanes, kVectors > 1 ? kLanes : size - d);
    for (int h = 0; h < kHeads; ++h) {
      const Vector weight = broadcast(s.weight[h][position]);
      for (int i = 0; i < kVectors; ++i) sum[h][i] = multiply_add(weight, v[i], sum[h][i]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) Float32::store(s.value[h] + d + i * kLanes, sum[h][i]);
  }
}

// kHeads query heads from the group's `head` on.
template <class Type, int kHeads>
void attend_heads(const AttentionArguments& a, int64_t unit, int64_t head) {
  const int64_t sequence = unit / a.kv_heads, kv_head = unit % a.kv_heads, size = a.head_size;
  const int64_t length = a.lengths[sequence], offset = (kv_head * a.group + head) * size;
  const auto* query = row_of<Type>(a.query, a.query_stride, sequence) + offset;
  auto* y = row_of<Type>(a.y, a.kv_heads * a.group * size, sequence) + offset;
  State<kHeads> s;
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t d = 0; d < size; d += kLanes)
      Float32::store(s.query[h] + d, load<Type>(query + h * size + d, size - d) * a.scale);
    s.largest[h] = -__builtin_inff();
    s.sum[h] = 0;
  }
  for (int64_t start = 0; start < length; start += kChunk) {
    const int64_t count = smaller(kChunk, length - start), place = (unit * a.context + start) * size;
    const auto* key = row_of<Type>(a.key_cache, 1, place);
    const auto* value = row_of<Type>(a.value_cache, 1, place);
    const auto* next =
        start + kChunk < length ? key + kChunk * size : row_of<Type>(a.key_cache, size, (unit + 1) * a.context);
    score_all<Type, kHeads>(s, Rows<typename Type::Storage>{key, count, size, value});
    exponentiate<kHeads>(s, count, size);
    const Rows<typename Type::Storage> values{value, count, size, next};
    int64_t d = 0;
    for (; d + 4 * kLanes <= size; d += 4 * kLanes) add_values<Type, kHeads, 4>(s, values, d);
    for (; d < size; d += kLanes) add_values<Type, kHeads, 1>(s, values, d);
  }
  for (int h = 0; h < kHeads; ++h) {
    const Vector inverse = broadcast(length > 0 ? 1.0f / s.sum[h] : 0.0f);
    for (int64_t d = 0; d < size; d += kLanes)
      store<Type>(y + h * size + d, Float32::load(s.value[h] + d) * inverse, size - d);
  }
}

}  // namespace

void attend_cached(const AttentionArguments& a, int64_t first, int64_t last) {
  dispatch(a.storage, [&](auto type) {
    using Type = decltype(type);
    for (int64_t unit = first; unit < last; ++unit) {
      for (int64_t head = 0; head < a.group; head += 4) {
        switch (smaller(4, a.group - head)) {
          case 1: attend_heads<Type, 1>(a, unit, head); break;
          case 2: attend_heads<Type, 2>(a, unit, head); break;
          case 3: attend_heads<Type, 3>(a, unit, head); break;
          default: attend_heads<Type, 4>(a, unit, head);
        }
      }
    }
  });
}

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA
