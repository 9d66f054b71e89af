// The next token of a row, exactly as Note [Sampling] in model/sampling.h defines it. Where top_k or top_p end the list
// is found by counting: a histogram of the order's leading bits says in which bin the end falls, and that bin is looked
// at again with the next bits.
#include "model/sampling.h"

#include "model/cpu/dispatch.h"

namespace faultline::ops::cpu::FAULTLINE_ISA {
namespace {

constexpr int64_t kBlock = 256;  // tokens
constexpr int kDigit = 11;       // bits; three digits cover an order, the last has 10 of its own

// The last token that is kept: all of a higher order are, and of equal ones those up to its index.
struct End {
  uint32_t order = 0;
  int64_t index = INT64_MAX;
};

struct Row {
  const float* usable;
  const uint64_t* weights;
  int64_t size;
  float largest;
};

template <class Type>
bool read_logits(const typename Type::Storage* logits, int64_t size, float* usable) {
  Words nan = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    const Vector v = load<Type>(logits + i, size - i);
    nan |= v != v ? Words{} + 1u : Words{};
    store<Float32>(usable + i, v, size - i);
  }
  for (int64_t i = 0; i < size; ++i) usable[i] = sampling::usable_logit(usable[i]);
  uint32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= nan[i];
  return any != 0;
}

float largest_of(const float* values, int64_t size) {
  Vector largest = broadcast(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) largest = larger(largest, Float32::load(values + i));
  float result = largest_lane(largest);
  for (; i < size; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

int64_t first_equal(const float* values, float wanted) {
  int64_t i = 0;
  while (values[i] != wanted) ++i;
  return i;
}

uint64_t weigh(const float* usable, int64_t size, float largest, float inverse, uint64_t* weights) {
  uint64_t total = 0;
  for (int64_t i = 0; i < size; ++i) {
    weights[i] = sampling::fixed_weight(usable[i] - largest, inverse);
    total += weights[i];
  }
  return total;
}

// Down the order until `count` tokens or `mass` are reached.
End find_end(const Row& row, uint64_t count, uint64_t mass) {
  uint64_t taken = 0, taken_mass = 0;
  uint32_t prefix = 0, fixed = 0;  // the bits of the order that are known, and which these are
  for (int shift = 32 - kDigit; fixed != 0xFFFFFFFFu; shift = shift > kDigit ? shift - kDigit : 0) {
    uint64_t tokens[1 << kDigit] = {}, masses[1 << kDigit] = {};
    const uint32_t digit = (1u << kDigit) - 1;
    for (int64_t i = 0; i < row.size; ++i) {
      const uint32_t order = sampling::order_of(row.usable[i]);
      if ((order & fixed) != prefix) continue;
      tokens[order >> shift & digit] += 1;
      masses[order >> shift & digit] += row.weights[i];
    }
    // The last digit overlaps the one before by a bit, which is known by then and therefore the same in every token.
    int64_t bin = digit;
    while (bin >= 0 && taken + tokens[bin] < count && taken_mass + masses[bin] < mass) {
      taken += tokens[bin];
      taken_mass += masses[bin--];
    }
    if (bin < 0) return {};
    prefix |= static_cast<uint32_t>(bin) << shift;
    fixed |= digit << shift;
  }
  for (int64_t i = 0;; ++i) {
    if (sampling::order_of(row.usable[i]) != prefix) continue;
    taken += 1;
    taken_mass += row.weights[i];
    if (taken >= count || taken_mass >= mass) return {prefix, i};
  }
}

// Gumbel noise of `kBlock` tokens from `first` on, which is a multiple of four.
void draw_noise(int64_t key, int64_t position, int64_t first, float* noise) {
  uint32_t word[4][kBlock / 4];
#pragma GCC ivdep
  for (int64_t group = 0; group < kBlock / 4; ++group) {
    const PhiloxWords words = sampling::noise_words(key, position, static_cast<uint32_t>(first / 4 + group));
    for (int i = 0; i < 4; ++i) word[i][group] = words.word[i];
  }
  for (int i = 0; i < 4; ++i) {
#pragma GCC ivdep
    for (int64_t group = 0; group < kBlock / 4; ++group) noise[4 * group + i] = sampling::gumbel_of(word[i][group]);
  }
}

int64_t draw(const Row& row, const End& end, float inverse, int64_t key, int64_t position) {
  float noise[kBlock], scores[kBlock], best = -__builtin_inff();
  int64_t token = 0;
  for (int64_t first = 0; first < row.size; first += kBlock) {
    const int64_t count = smaller(kBlock, row.size - first);
    draw_noise(key, position, first, noise);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const float usable = row.usable[first + i];
      const uint32_t order = sampling::order_of(usable);
      const bool kept = (order > end.order) | ((order == end.order) & (first + i <= end.index));
      const float score = sampling::gumbel_score(usable - row.largest, inverse, noise[i]);
      scores[i] = kept ? score : -__builtin_inff();
    }
    const float highest = largest_of(scores, count);
    if (highest > best) {
      best = highest;
      token = first + first_equal(scores, highest);
    }
  }
  return token;
}

void sample_row(const SampleArguments& a, int64_t row, bool any_nan, uint64_t* weights, const float* usable) {
  const Row r{usable, weights, a.vocabulary, largest_of(usable, a.vocabulary)};
  const float inverse = sampling::inverse_temperature(a.temperature[row]);
  const uint64_t total = weigh(usable, r.size, r.largest, inverse, weights);
  if (sampling::is_greedy(a.temperature[row])) {
    a.token[row] = first_equal(usable, r.largest);
  } else {
    const uint64_t mass = sampling::mass_target(a.top_p[row], total);
    const bool all = a.top_k[row] <= 0 || a.top_k[row] >= r.size;
    End end;
    if (!all || mass != sampling::kNoMassLimit)
      end = find_end(r, all ? UINT64_MAX : static_cast<uint64_t>(a.top_k[row]), mass);
    a.token[row] = draw(r, end, inverse, a.key[row], a.position[row]);
  }
  a.log_probability[row] =
      any_nan ? __builtin_nanf("") : sampling::log_probability(usable[a.token[row]] - r.largest, inverse, total);
}

}  // namespace

void sample(const SampleArguments& a, int64_t first, int64_t last, uint64_t* weights, float* usable) {
  dispatch(a.storage, [&](auto type) {
    using Type = decltype(type);
    for (int64_t row = first; row < last; ++row) {
      const bool any_nan = read_logits<Type>(row_of<Type>(a.logits, a.stride, row), a.vocabulary, usable);
      sample_row(a, row, any_nan, weights, usable);
    }
  });
}

}  // namespace faultline::ops::cpu::FAULTLINE_ISA
