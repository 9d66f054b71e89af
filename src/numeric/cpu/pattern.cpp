// Patterns on a CPU. A check first asks whether a block of 512 elements differs at all, in a loop that vectorises; only
// a block that does is gone through element by element.
#include "numeric/cpu/pattern.h"

#include <algorithm>

namespace faultline::numeric::cpu {
namespace {

constexpr int64_t kBlock = 512;

// Key by key, because a loop over the keys of one element would not vectorise. At most kBlock elements.
template <class Type>
void fill_integers(const Pattern& pattern, uint32_t first, int64_t elements, typename Type::Bits* data) {
  int32_t sums[kBlock] = {};
  const int32_t bits = pattern.integer_bits;
  for (int32_t k = 0; k < pattern.keys; ++k) {
    const PatternKey key = pattern.key[k];
#pragma GCC ivdep
    for (int64_t i = 0; i < elements; ++i)
      sums[i] += integer_value(pattern_word(key, first + static_cast<uint32_t>(i)), bits);
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < elements; ++i) data[i] = Type::round(static_cast<float>(sums[i]));
}

template <class Type, PatternForm kForm>
void fill_block(const Pattern& pattern, uint32_t first, int64_t elements, typename Type::Bits* data) {
  if constexpr (kForm == PatternForm::kInteger) {
    fill_integers<Type>(pattern, first, elements, data);
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < elements; ++i)
      data[i] = pattern_bits<Type, kForm>(pattern, first + static_cast<uint32_t>(i));
  }
}

template <class Bits>
void account(uint32_t poison, uint64_t index, Bits observed, Bits expected, PatternCheck& row) {
  if (observed == expected) return;
  const uint64_t difference = static_cast<uint64_t>(observed ^ expected);
  ++row.count;
  if (~index > row.first_from_end) row.first_from_end = ~index;
  if (index > row.last) row.last = index;
  row.changed_bits |= difference;
  row.zeros += observed == 0;
  row.poisoned += observed == static_cast<Bits>(poison);
  if (row.samples < PatternCheck::kSamples) {
    row.index[row.samples] = index;
    row.observed[row.samples] = observed;
    ++row.samples;
  }
  for (int bit = 0; bit < static_cast<int>(8 * sizeof(Bits)); ++bit) row.histogram[bit] += (difference >> bit) & 1u;
}

template <class Type, PatternForm kForm>
void check_elements(const Pattern& pattern, uint32_t poison, uint32_t first, int64_t elements, const void* data,
                    PatternCheck* row) {
  using Bits = typename Type::Bits;
  const auto* values = static_cast<const Bits*>(data);
  Bits expected[kBlock];
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, elements - begin);
    const uint32_t offset = first + static_cast<uint32_t>(begin);
    fill_block<Type, kForm>(pattern, offset, count, expected);
    if (__builtin_memcmp(expected, values + begin, static_cast<size_t>(count) * sizeof(Bits)) == 0) continue;
    for (int64_t i = 0; i < count; ++i)
      account<Bits>(poison, uint64_t{offset} + static_cast<uint64_t>(i), values[begin + i], expected[i], *row);
  }
}

void fill(const Pattern& pattern, uint32_t first, int64_t elements, void* data) {
  // A copy that the compiler knows nobody else writes: keys stay in registers.
  const Pattern own = pattern;
  dispatch_pattern(own, [&]<class Type, PatternForm kForm>() {
    auto* values = static_cast<typename Type::Bits*>(data);
    for (int64_t begin = 0; begin < elements; begin += kBlock)
      fill_block<Type, kForm>(own, first + static_cast<uint32_t>(begin), std::min(kBlock, elements - begin),
                              values + begin);
  });
}

void check(const Pattern& pattern, uint32_t poison, uint32_t first, int64_t elements, const void* data,
           PatternCheck* row) {
  const Pattern own = pattern;
  dispatch_pattern(own, [&]<class Type, PatternForm kForm>() {
    check_elements<Type, kForm>(own, poison, first, elements, data, row);
  });
}

}  // namespace

namespace FAULTLINE_ISA {
const PatternKernels kPatternKernels = {fill, check};
}  // namespace FAULTLINE_ISA

}  // namespace faultline::numeric::cpu
