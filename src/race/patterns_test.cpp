// Patterns: equal on all instruction sets, different between places, and damage told by what it is.
#include "race/patterns.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "numeric/portable/pattern.h"

namespace faultline::race {
namespace patterns_test {

const PatternPlace kPlace{7, 5, 3, 2, Stream::kParameters};

PatternAt raw(at::ScalarType type) {
  return [type](const PatternPlace& place) { return element_pattern(numeric::PatternForm::kRaw, type, place); };
}

at::Tensor filled(const numeric::Pattern& pattern, at::ScalarType type, int64_t elements = 1000) {
  at::Tensor buffer = at::empty({elements}, type);
  fill(buffer, pattern);
  return buffer;
}

numeric::PatternCheck compared(const at::Tensor& buffer, const numeric::Pattern& pattern, uint32_t poison = 0) {
  at::Tensor row = at::zeros({numeric::kPatternCheckWords}, at::kLong);
  check(buffer, pattern, poison, row);
  numeric::PatternCheck found;
  std::memcpy(&found, row.const_data_ptr(), sizeof found);
  return found;
}

Diagnosis diagnosed(const at::Tensor& buffer, uint32_t poison = 0x12341234) {
  const numeric::Pattern pattern = raw(buffer.scalar_type())(kPlace);
  return diagnose(compared(buffer, pattern, poison), {kPlace, raw(buffer.scalar_type()), buffer.numel(), 8, 4});
}

TEST(Patterns, AreFoundAgainInEveryDtype) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const numeric::Pattern pattern = raw(type)(kPlace);
    EXPECT_EQ(compared(filled(pattern, type), pattern).count, 0u);
  }
}

// The operators that serve devices without kernels of ours give the kernels' bits and find what the kernels find, also
// where a buffer is longer than one of their chunks.
TEST(Patterns, AreTheSameFromPortableOperators) {
  constexpr int64_t kLong = (int64_t{1} << 20) + 700;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const numeric::Pattern& pattern :
         {raw(type)(kPlace), element_pattern(numeric::PatternForm::kFinite, type, kPlace),
          integer_pattern(type, kPlace, 4), sum_pattern(type, kPlace, 4)}) {
      const at::Tensor buffer = filled(pattern, type, kLong), made = at::empty({kLong}, type);
      numeric::portable::fill_pattern(made, pattern);
      EXPECT_TRUE(at::equal(made.view(at::kByte), buffer.view(at::kByte))) << c10::toString(type);
      const at::Tensor halves = buffer.view(at::kShort);
      halves.narrow(0, 40, 20).zero_();
      halves.narrow(0, halves.numel() - 30, 5).fill_(int16_t{0x1235});
      halves[halves.numel() / 2].bitwise_xor_(0x24);
      at::Tensor row = at::zeros({numeric::kPatternCheckWords}, at::kLong);
      numeric::portable::check_pattern(buffer, pattern, 0x12351235, row);
      numeric::PatternCheck found, wanted = compared(buffer, pattern, 0x12351235);
      std::memcpy(&found, row.const_data_ptr(), sizeof found);
      EXPECT_EQ(std::memcmp(&found, &wanted, sizeof found), 0)
          << c10::toString(type) << " " << found.count << " " << wanted.count;
      row.zero_();
      numeric::portable::check_pattern(made, pattern, 0x12351235, row);
      EXPECT_EQ(row.count_nonzero().item<int64_t>(), 0) << "a clean buffer leaves its row untouched";
    }
}

TEST(Patterns, DependOnEveryPartOfThePlace) {
  std::set<std::pair<uint32_t, uint32_t>> keys;
  const auto add = [&](PatternPlace place) {
    const numeric::PatternKey key = pattern_key(place);
    keys.insert({key.low, key.high});
  };
  add(kPlace);
  for (int part = 0; part < 5; ++part) {
    PatternPlace other = kPlace;
    if (part == 0) ++other.seed;
    if (part == 1) ++other.iteration;
    if (part == 2) ++other.layer;
    if (part == 3) ++other.rank;
    if (part == 4) other.stream = Stream::kGradients;
    add(other);
  }
  EXPECT_EQ(keys.size(), 6u);
}

TEST(Patterns, AStaleBufferIsNoRightBuffer) {  // lesson 42
  PatternPlace before = kPlace;
  --before.iteration;
  EXPECT_GT(compared(filled(raw(at::kBFloat16)(before), at::kBFloat16), raw(at::kBFloat16)(kPlace)).count, 990u);
}

TEST(Patterns, FiniteOnesAreFinite) {
  const numeric::Pattern pattern = element_pattern(numeric::PatternForm::kFinite, at::kHalf, kPlace);
  const at::Tensor values = filled(pattern, at::kHalf, 100000).to(at::kFloat).abs();
  EXPECT_TRUE(at::isfinite(values).all().item<bool>());
  EXPECT_LE(values.max().item<float>(), 1.0f);
  EXPECT_GE(values.min().item<float>(), std::ldexp(1.0f, -8));
}

TEST(Patterns, SumsOfIntegersAreExactUpToTheLimit) {  // lesson 53: never with a tolerance
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int ranks : {1, 3, 4, 64, most_exact_ranks(type)}) {
      at::Tensor sum = at::zeros({500}, type);
      PatternPlace place = kPlace;
      for (place.rank = 0; place.rank < ranks; ++place.rank)
        sum.add_(filled(integer_pattern(type, place, ranks), type, 500));
      EXPECT_EQ(compared(sum, sum_pattern(type, kPlace, ranks)).count, 0u) << c10::toString(type) << " " << ranks;
    }
  }
}

TEST(Patterns, ACheckTellsCountFirstLastAndBits) {
  const numeric::Pattern pattern = raw(at::kBFloat16)(kPlace);
  const at::Tensor buffer = filled(pattern, at::kBFloat16), words = buffer.view(at::kShort);
  words[17].bitwise_xor_(at::scalar_tensor(4, at::kShort));
  words[900].bitwise_xor_(at::scalar_tensor(32, at::kShort));
  const numeric::PatternCheck found = compared(buffer, pattern);
  EXPECT_EQ(found.count, 2u);
  EXPECT_EQ(found.first(), 17u);
  EXPECT_EQ(found.last, 900u);
  EXPECT_EQ(found.changed_bits, 36u);
  EXPECT_EQ(found.histogram[2], 1u);
  EXPECT_EQ(found.histogram[5], 1u);
}

TEST(Diagnosis, ToldDamageFromDamage) {
  const numeric::Pattern pattern = raw(at::kBFloat16)(kPlace);
  const at::Tensor clean = filled(pattern, at::kBFloat16);
  at::Tensor buffer = clean.clone();
  buffer.view(at::kShort)[17].bitwise_xor_(at::scalar_tensor(4, at::kShort));
  EXPECT_EQ(diagnosed(buffer).damage, Damage::kBitFlip);

  buffer = clean.clone();
  buffer.narrow(0, 100, 50).zero_();
  EXPECT_EQ(diagnosed(buffer).damage, Damage::kZero);

  buffer = clean.clone();
  const at::Tensor kept = buffer[4].clone();
  buffer[4].copy_(buffer[900]);
  buffer[900].copy_(kept);
  EXPECT_EQ(diagnosed(buffer).damage, Damage::kSwapped);  // lesson 44: a plain sum does not see it

  buffer = clean.clone();
  const uint32_t word = poison_word(7, 5, 3);
  poison(buffer.narrow(0, 500, 500), word);
  EXPECT_EQ(diagnosed(buffer, word).damage, Damage::kPartial);
  poison(buffer, word);
  EXPECT_EQ(diagnosed(buffer, word).damage, Damage::kUntouched);  // lesson 43
}

TEST(Patterns, PoisonIsNeverZeroInAnyHalf) {  // or a buffer that nobody wrote and one full of zeros would look alike
  for (int64_t iteration = 0; iteration < 100'000; ++iteration) {
    const uint32_t word = poison_word(7, iteration, 3);
    ASSERT_NE(word & 0xFFFFu, 0u) << iteration;
    ASSERT_EQ(word & 0xFFFFu, word >> 16) << iteration;
  }
}

TEST(Diagnosis, NamesWhereStaleAndMisdirectedDataCameFrom) {
  PatternPlace other = kPlace;
  other.iteration -= 2;
  other.layer = 6;
  const Diagnosis stale = diagnosed(filled(raw(at::kFloat)(other), at::kFloat));
  EXPECT_EQ(stale.damage, Damage::kStale);
  EXPECT_EQ(stale.from_iteration, 3);
  EXPECT_EQ(stale.from_layer, 6);
  other = kPlace;
  other.rank = 1;
  const Diagnosis misdirected = diagnosed(filled(raw(at::kFloat)(other), at::kFloat));
  EXPECT_EQ(misdirected.damage, Damage::kOtherRank);
  EXPECT_EQ(misdirected.from_rank, 1);
}

}  // namespace patterns_test
}  // namespace faultline::race
