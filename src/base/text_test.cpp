// Text: suggestions are useful and not silly; the hashes equal the published functions, checked with vectors made by
// the reference library (python-xxhash 3), every tail length of the algorithm included.
#include "base/text.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <set>
#include <vector>

namespace faultline {
namespace text_test {

const std::vector<std::string> kOperators = {"aten::mm", "aten::bmm", "aten::addmm", "aten::softmax", "relu"};

TEST(NearestName, FindsTheNameOneTypoAway) {
  EXPECT_EQ(nearest_name("aten::adm*", kOperators), "aten::addmm");
  EXPECT_EQ(nearest_name("aten::sofmtax", kOperators), "aten::softmax");
  EXPECT_EQ(nearest_name("ATEN::BMM", kOperators), "aten::bmm");
}

TEST(NearestName, CountsASwapOfNeighboursAsOneEdit) {
  // Without swaps both would be two edits away, and the earlier would win.
  const std::vector<std::string> known = {"rleaf", "relu"};
  EXPECT_EQ(nearest_name("rleu", known), "relu");
  EXPECT_EQ(nearest_name("rleu", std::vector<std::string>{"rxxu"}), "rxxu");
}

TEST(NearestName, PrefersTheEarlierOfEquallyNearNames) {
  EXPECT_EQ(nearest_name("layer_x", std::vector<std::string>{"layer_b", "layer_a"}), "layer_b");
}

TEST(NearestName, NeverSuggestsTheTextThatWasTyped) {
  EXPECT_EQ(nearest_name("relu", kOperators), "");
  EXPECT_EQ(nearest_name("aten::mm", kOperators), "aten::bmm");
}

TEST(NearestName, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("temperature", kOperators), "");
  EXPECT_EQ(nearest_name("", kOperators), "");
  EXPECT_EQ(nearest_name("x", std::vector<std::string>{"y"}), "");
  EXPECT_EQ(nearest_name("relu", {}), "");
}

TEST(DidYouMean, IsTheEndOfASentence) {
  EXPECT_EQ(did_you_mean("rel", kOperators), "; did you mean 'relu'?");
  EXPECT_EQ(did_you_mean("unrelated_thing", kOperators), "");
}

TEST(FormatDuration, ShowsHoursOnlyWhenThereAreAny) {
  EXPECT_EQ(format_duration(0), "00:00");
  EXPECT_EQ(format_duration(59.99), "00:59");
  EXPECT_EQ(format_duration(125), "02:05");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(270'000), "75:00:00");
}

TEST(FormatDuration, ShowsWhatIsNotATimeAsUnknown) {
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(FormatCount, IsExactWhileShortAndThreeDigitsAfter) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(99'999), "99999");
  EXPECT_EQ(format_count(123'456), "123k");
  EXPECT_EQ(format_count(999'499), "999k");
  EXPECT_EQ(format_count(999'500), "1.00M");
  EXPECT_EQ(format_count(9'995'000), "10.0M");
  EXPECT_EQ(format_count(45'600'000'000), "45.6G");
  EXPECT_EQ(format_count(-1'230'000), "-1.23M");
  EXPECT_EQ(format_count(std::numeric_limits<int64_t>::max()), "9.22E");
}

TEST(Hash64, EqualsXxHash64OnPublishedVectors) {
  EXPECT_EQ(hash64(""), 0xef46db3751d8e999u);
  EXPECT_EQ(hash64("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(hash64("abc"), 0x44bc2cf5ad770999u);
}

struct HashVector {
  size_t length;
  uint64_t seed;
  uint64_t hash;
};

// bytes i*167+13 mod 256, i = 0..length-1
const HashVector kHashVectors[] = {
    {0, 0x0u, 0xef46db3751d8e999u},
    {0, 0x1u, 0xd5afba1336a3be4bu},
    {0, 0x9e3779b97f4a7c15u, 0xc4349fc93c010000u},
    {0, 0xffffffffffffffffu, 0x298f4c84b24f5380u},
    {1, 0x0u, 0x2078e1ad38ad738bu},
    {1, 0xffffffffffffffffu, 0x6fbb6e732fff4cbcu},
    {2, 0x0u, 0xd9c7bf9d2ba6b544u},
    {2, 0xffffffffffffffffu, 0x516b4906554268a1u},
    {3, 0x0u, 0x634d95fc01a189cdu},
    {3, 0xffffffffffffffffu, 0x3702e633f6264a01u},
    {4, 0x0u, 0xeed340908a1ac6c6u},
    {4, 0xffffffffffffffffu, 0x4ccf9dd03ef30dcau},
    {5, 0x0u, 0x342bd7a5f3e2edcdu},
    {5, 0x1u, 0xfeb3b490f3029a80u},
    {5, 0x9e3779b97f4a7c15u, 0x109be8cfdac25299u},
    {5, 0xffffffffffffffffu, 0xc694fad2e25284d3u},
    {7, 0x0u, 0x0da493621d6dc898u},
    {7, 0xffffffffffffffffu, 0x8e6c33a6043d3defu},
    {8, 0x0u, 0x76f916c7bb523126u},
    {8, 0xffffffffffffffffu, 0x0b87b1071c542f92u},
    {9, 0x0u, 0x175d7bee83bd73b9u},
    {9, 0xffffffffffffffffu, 0x7cc31e46d329a867u},
    {11, 0x0u, 0x8beae4d88d350b4bu},
    {11, 0xffffffffffffffffu, 0x52b2bfb0302901cau},
    {12, 0x0u, 0xfb52f89a1dc449d2u},
    {12, 0xffffffffffffffffu, 0x1858b876a873633du},
    {13, 0x0u, 0x7e1a468bdd27b4d8u},
    {13, 0xffffffffffffffffu, 0x9a0d82fb875e074cu},
    {15, 0x0u, 0x4e1c333b057fb6a4u},
    {15, 0xffffffffffffffffu, 0x5b84e64ab5d2ca09u},
    {16, 0x0u, 0x7bbeff67699312f6u},
    {16, 0xffffffffffffffffu, 0x3207bf3da9cc6a11u},
    {20, 0x0u, 0xb497ddde8ca2de89u},
    {20, 0xffffffffffffffffu, 0x172452aedf401683u},
    {24, 0x0u, 0x864bf0f760184516u},
    {24, 0xffffffffffffffffu, 0x18755e7d11a56b48u},
    {28, 0x0u, 0x407a0d8e5df705fcu},
    {28, 0xffffffffffffffffu, 0x79f82e12b5724f83u},
    {31, 0x0u, 0x65c5feb01da7464du},
    {31, 0xffffffffffffffffu, 0x26410674da2508bau},
    {32, 0x0u, 0x7665c921c9bf2ec7u},
    {32, 0xffffffffffffffffu, 0x7c688ca0530c3a9fu},
    {33, 0x0u, 0xb5a9d9ef259ae821u},
    {33, 0x1u, 0xfaa058ec508dbfe0u},
    {33, 0x9e3779b97f4a7c15u, 0x6100099110b4aa0fu},
    {33, 0xffffffffffffffffu, 0xab869658eda7c134u},
    {36, 0x0u, 0xde4c0f568d54d497u},
    {36, 0xffffffffffffffffu, 0xf7b18e4f9b63890bu},
    {39, 0x0u, 0xe2148dbbc5ab4089u},
    {39, 0xffffffffffffffffu, 0x75ded9c76e1e86dfu},
    {40, 0x0u, 0xc94202b2b0886774u},
    {40, 0xffffffffffffffffu, 0xeb4f8fd60eea9ec7u},
    {47, 0x0u, 0xffb42101c210309eu},
    {47, 0xffffffffffffffffu, 0xb0fc17aa8d6a10e0u},
    {63, 0x0u, 0xb0289cd9324034f0u},
    {63, 0xffffffffffffffffu, 0x9cc035f59d59dd37u},
    {64, 0x0u, 0xfff2525c99bf2005u},
    {64, 0xffffffffffffffffu, 0x87adb19c1e411a30u},
    {65, 0x0u, 0x01fbd6d6ac20fbafu},
    {65, 0xffffffffffffffffu, 0xc5674c8af2048ef2u},
    {71, 0x0u, 0x7b9dc081227ff4c7u},
    {71, 0xffffffffffffffffu, 0xac110adf2eda142bu},
    {95, 0x0u, 0x3b4ce2d430b0fde8u},
    {95, 0xffffffffffffffffu, 0xbdae4f779c7079ddu},
    {96, 0x0u, 0xb4c91238bebc5148u},
    {96, 0xffffffffffffffffu, 0x83face163e34b7d9u},
    {100, 0x0u, 0x74e502db362efd4cu},
    {100, 0xffffffffffffffffu, 0xeab6929c4e9b92b2u},
    {127, 0x0u, 0x48b995c66a54ba1cu},
    {127, 0xffffffffffffffffu, 0x2fcb60877c511c72u},
    {128, 0x0u, 0x048add5a12b8c247u},
    {128, 0xffffffffffffffffu, 0x4d0e3c288cfbf2bfu},
    {255, 0x0u, 0xb75387e16b347906u},
    {255, 0xffffffffffffffffu, 0xa8092c4cc317c064u},
    {1000, 0x0u, 0x626443c8029d0542u},
    {1000, 0x1u, 0xc86828d1c94b3f0au},
    {1000, 0x9e3779b97f4a7c15u, 0xc98e411e8ea1921au},
    {1000, 0xffffffffffffffffu, 0x41692b29ce725a4fu},
    {4099, 0x0u, 0x14d82cbc0385cc86u},
    {4099, 0xffffffffffffffffu, 0x6fd218970d8d7e30u},
};

TEST(Hash64, EqualsTheReferenceLibraryForEveryTailLengthAndSeed) {
  for (const HashVector& vector : kHashVectors) {
    std::string bytes;
    for (size_t i = 0; i < vector.length; ++i) bytes.push_back(static_cast<char>(i * 167 + 13));
    EXPECT_EQ(hash64(bytes, vector.seed), vector.hash) << "length " << vector.length << " seed " << vector.seed;
  }
}

TEST(Mix64, KeepsItsValuesForever) {
  EXPECT_EQ(mix64(0x0u, 0x0u), 0xa706dd2f4d197e6fu);
  EXPECT_EQ(mix64(0x1u, 0x2u), 0xbcd9dbb49673066bu);
  EXPECT_EQ(mix64(0x2u, 0x1u), 0xe06dd043328bd285u);
  EXPECT_EQ(mix64(0xffffffffffffffffu, 0xffffffffffffffffu), 0x5155e650b56274f2u);
  EXPECT_EQ(mix64(0x1234u, 0xdeadbeefu), 0x558f9bb8172c5cd1u);
}

TEST(Mix64, DependsOnTheOrderOfItsArguments) { EXPECT_NE(mix64(1, 2), mix64(2, 1)); }

TEST(Mix64, NeverCollidesForAFixedFirstArgument) {
  std::set<uint64_t> seen;
  for (uint64_t b = 0; b < 10'000; ++b) seen.insert(mix64(7, b));
  EXPECT_EQ(seen.size(), 10'000u);
}

TEST(Mix64, FlipsHalfTheOutputForAnyFlippedInputBit) {
  for (int bit = 0; bit < 64; ++bit) {
    int flipped_a = 0, flipped_b = 0;
    constexpr int kTrials = 256;
    for (uint64_t trial = 0; trial < kTrials; ++trial) {
      const uint64_t flip = uint64_t{1} << bit;
      flipped_a += std::popcount(mix64(trial, 5) ^ mix64(trial ^ flip, 5));
      flipped_b += std::popcount(mix64(5, trial) ^ mix64(5, trial ^ flip));
    }
    // 256 * 64 fair bits: mean 8192, SD 64; eight of them never happen by chance.
    EXPECT_NEAR(flipped_a, 32 * kTrials, 8 * 64) << "bit " << bit;
    EXPECT_NEAR(flipped_b, 32 * kTrials, 8 * 64) << "bit " << bit;
  }
}

}  // namespace text_test
}  // namespace faultline
