// The next token of a row, exactly as Note [Sampling] in model/sampling.h defines it. Where top_k or top_p end the list
// is found by counting: a histogram of the order's leading bits says in which bin the end falls, and that bin is looked
// at again with the next bits.
#include "model/cpu/dispatch.h"
#include "model/sampling.h"

namespace faultline::model::ops::cpu::FAULTLINE_ISA {
namespace {

constexpr int64_t kBlock = 64;  // tokens
constexpr int kDigit = 11;      // bits; three digits cover an order, the last has 10 of its own

// The last token that is kept: all of a higher order are, and of equal ones those up to its index.
struct End {
  uint32_t order = 0;
  int64_t index = INT64_MAX;
};

struct Row {
  const float* usable;
  const uint64_t* weights;
  int64_t size;
  float largest, inverse;  // of the temperature
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

// Where the kept tokens end: at `count` tokens or at `mass`, whichever comes first.
struct Limits {
  uint64_t count, mass;
  bool reached(uint64_t tokens, uint64_t weight) const { return tokens >= count || weight >= mass; }
};

// candidates: room for all tokens; in the end those whose order agrees in all bits looked at.
End find_end(const Row& row, const Limits& limits, uint32_t* candidates) {
  uint64_t taken = 0, mass = 0;
  int64_t count = row.size;
  uint32_t prefix = 0, fixed = 0;  // the bits of the order that are known, and which these are
  for (int shift = 32 - kDigit; fixed != 0xFFFFFFFFu; shift = shift > kDigit ? shift - kDigit : 0) {
    uint64_t tokens[1 << kDigit] = {}, masses[1 << kDigit] = {};
    const uint32_t digit = (1u << kDigit) - 1;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t token = fixed == 0 ? static_cast<uint32_t>(i) : candidates[i];
      const uint32_t bin = sampling::order_of(row.usable[token]) >> shift & digit;
      tokens[bin] += 1;
      masses[bin] += row.weights[token];
    }
    // The last digit overlaps the one before by a bit, which is known by then and therefore the same in every token.
    int64_t bin = digit;
    while (bin >= 0 && !limits.reached(taken + tokens[bin], mass + masses[bin])) {
      taken += tokens[bin];
      mass += masses[bin--];
    }
    if (bin < 0) return {};
    prefix |= static_cast<uint32_t>(bin) << shift;
    const bool all = fixed == 0;
    fixed |= digit << shift;
    int64_t left = 0;
    for (int64_t i = 0; i < count; ++i) {  // without a branch: whether a token stays cannot be predicted
      const uint32_t token = all ? static_cast<uint32_t>(i) : candidates[i];
      candidates[left] = token;
      left += (sampling::order_of(row.usable[token]) & fixed) == prefix ? 1 : 0;
    }
    count = left;
  }
  int64_t last = -1;
  do {
    taken += 1;
    mass += row.weights[candidates[++last]];
  } while (!limits.reached(taken, mass));
  return {prefix, candidates[last]};
}

// The random words of `kBlock` tokens from `first` on, which is a multiple of four; in word[i][group] that of token
// first + 4 group + i. -> the smallest
uint32_t draw_words(int64_t key, int64_t position, int64_t first, uint32_t (&word)[4][kBlock / 4]) {
#pragma GCC ivdep
  for (int64_t group = 0; group < kBlock / 4; ++group) {
    const PhiloxWords words = sampling::noise_words(key, position, static_cast<uint32_t>(first / 4 + group));
    for (int i = 0; i < 4; ++i) word[i][group] = words.word[i];
  }
  uint32_t smallest = UINT32_MAX;
  for (const auto& row : word) {
    for (const uint32_t value : row) smallest = value < smallest ? value : smallest;
  }
  return smallest;
}

// Whether noise from words this large stays below `needed`: -ln(-ln(1 - t)) < x where t >= e^-x. With a margin far
// above what roundings do to either side, so that leaving the logarithms out changes no draw.
bool is_hopeless(uint32_t smallest, float needed) {
  const float margin = 0.01f;
  return needed > 1 && static_cast<float>(smallest) * 0x1p-32f > sampling::exponential(margin - needed);
}

int64_t draw(const Row& row, const End& end, int64_t key, int64_t position) {
  const int64_t top = first_equal(row.usable, row.largest);  // always kept: its score is to be beaten
  const float to_beat = sampling::gumbel_noise(key, position, static_cast<uint32_t>(top));
  float scores[kBlock], best = -__builtin_inff();
  uint32_t word[4][kBlock / 4];
  int64_t token = 0;
  for (int64_t first = 0; first < row.size; first += kBlock) {
    const int64_t count = smaller(kBlock, row.size - first);
    const float highest_logit = largest_of(row.usable + first, count);
    if (sampling::order_of(highest_logit) < end.order) continue;
    const uint32_t smallest = draw_words(key, position, first, word);
    const float bar = best > to_beat ? best : to_beat;
    if (is_hopeless(smallest, bar - (highest_logit - row.largest) * row.inverse)) continue;
    for (int64_t i = 0; i < count; ++i) {
      const float usable = row.usable[first + i];
      const uint32_t order = sampling::order_of(usable);
      const bool kept = (order > end.order) | ((order == end.order) & (first + i <= end.index));
      const float noise = sampling::gumbel_of(word[i % 4][i / 4]);
      const float score = sampling::gumbel_score(usable - row.largest, row.inverse, noise);
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

void sample_row(const SampleArguments& a, int64_t row, bool any_nan, const SampleScratch& scratch) {
  const float* usable = scratch.usable;
  const float temperature = a.temperature[row];
  const Row r{usable, scratch.weights, a.vocabulary, largest_of(usable, a.vocabulary),
              sampling::inverse_temperature(temperature)};
  const uint64_t total = weigh(usable, r.size, r.largest, r.inverse, scratch.weights);
  if (sampling::is_greedy(temperature)) {
    a.token[row] = first_equal(usable, r.largest);
  } else {
    const bool all = a.top_k[row] <= 0 || a.top_k[row] >= r.size;
    const Limits limits{all ? UINT64_MAX : static_cast<uint64_t>(a.top_k[row]),
                        sampling::mass_target(a.top_p[row], total)};
    const bool limited = !all || limits.mass != sampling::kNoMassLimit;
    a.token[row] = draw(r, limited ? find_end(r, limits, scratch.candidates) : End{}, a.key[row], a.position[row]);
  }
  const float below = usable[a.token[row]] - r.largest;
  a.log_probability[row] = any_nan ? __builtin_nanf("") : sampling::log_probability(below, r.inverse, total);
}

}  // namespace

void sample(const SampleArguments& a, int64_t first, int64_t last, const SampleScratch& scratch) {
  dispatch(a.storage, [&](auto type) {
    using Type = decltype(type);
    for (int64_t row = first; row < last; ++row) {
      const bool any_nan = read_logits<Type>(row_of<Type>(a.logits, a.stride, row), a.vocabulary, scratch.usable);
      sample_row(a, row, any_nan, scratch);
    }
  });
}

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA
