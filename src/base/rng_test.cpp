#include "base/rng.h"

#include <gtest/gtest.h>

#include <vector>

namespace faultline {
namespace rng_test {

// Known answers of the reference implementation (Random123, kat_vectors, philox4x32 10).
TEST(Philox, GivesTheKnownAnswersOfTheReference) {
  const auto expect = [](const PhiloxWords& words, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    EXPECT_EQ(words.word[0], a);
    EXPECT_EQ(words.word[1], b);
    EXPECT_EQ(words.word[2], c);
    EXPECT_EQ(words.word[3], d);
  };
  expect(philox<10>(0, 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  expect(philox<10>(~0u, ~0u, ~0u, ~0u, ~0ull), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  expect(philox<10>(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0x299f31d0a4093822ull), 0xd16cfe09, 0x94fdcceb,
         0x5001e420, 0x24126ea1);
}

TEST(Philox, GivesTheSameWordsFromRoundKeys) {
  const uint64_t key = 0x0123456789abcdefull;
  const PhiloxWords a = philox(1, 2, 3, 4, key), b = philox(1, 2, 3, 4, philox_keys(key));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(a.word[i], b.word[i]);
}

TEST(Permutation, IsABijectionAndItsInverseUndoesIt) {
  for (const uint64_t size : {1u, 2u, 3u, 7u, 64u, 100u, 1000u, 4097u}) {
    const Permutation p = make_permutation(size, 99 + size);
    std::vector<bool> seen(size, false);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = permute(p, i);
      ASSERT_LT(image, size);
      EXPECT_FALSE(seen[image]);
      seen[image] = true;
      EXPECT_EQ(permute_back(p, image), i);
    }
  }
}

TEST(Permutation, DependsOnItsKey) {
  const Permutation a = make_permutation(1000, 1), b = make_permutation(1000, 2);
  int equal = 0;
  for (uint64_t i = 0; i < 1000; ++i) equal += permute(a, i) == permute(b, i);
  EXPECT_LT(equal, 20);
}

TEST(UnitFloat, StaysBelowOne) {
  EXPECT_EQ(unit_float(0), 0.0f);
  EXPECT_LT(unit_float(0xFFFFFFFFu), 1.0f);
}

}  // namespace rng_test
}  // namespace faultline
