#include <gtest/gtest.h>

#include "base/error.h"
#include "task/task.h"

namespace faultline::task {
namespace reward_test {

std::string strict(std::string_view text) { return extract_answer(text, Scoring::kStrict); }
std::string flexible(std::string_view text) { return extract_answer(text, Scoring::kFlexible); }

TEST(Reward, TakesTheLastMarkedNumberWithoutCommas) {
  EXPECT_EQ(strict("#### 1\n#### 1,234"), "1234");
  EXPECT_EQ(strict("so #### -5 it is"), "-5");
  EXPECT_EQ(strict("##### 7"), "7");
  EXPECT_EQ(strict("#### 3 #### "), "3");   // a mark without a number is no match
  EXPECT_EQ(strict("#### 3 #### -"), "3");  // nor is a sign alone
  EXPECT_EQ(strict("#### 12.5."), "12.5.");
  EXPECT_EQ(strict("#### ,"), "");
}

TEST(Reward, WantsExactlyOneSpaceAndNoDollar) {
  for (const char* text : {"", "72", "####72", "####  72", "####\n72", "#### $72", "### 72", "#### x"}) {
    EXPECT_EQ(strict(text), "") << text;
    EXPECT_EQ(reward(text, "72", Scoring::kStrict), 0) << text;
  }
}

TEST(Reward, ComparesTextNotValue) {
  EXPECT_EQ(reward("#### 72", "72", Scoring::kStrict), 1);
  EXPECT_EQ(reward("#### 72.0", "72", Scoring::kStrict), 0);
  EXPECT_EQ(reward("#### 72.", "72", Scoring::kStrict), 0);
  EXPECT_EQ(reward("#### 072", "72", Scoring::kStrict), 0);
  EXPECT_EQ(reward("", "", Scoring::kStrict), 0) << "no answer is never right";
}

TEST(Reward, FlexibleTakesTheLastNumberThatIsNotADot) {
  EXPECT_EQ(flexible("5 - 3 = 2. Done ."), "2.");
  EXPECT_EQ(flexible("a . b ."), ".");
  EXPECT_EQ(flexible("10-3"), "-3");
  EXPECT_EQ(flexible("--7"), "-7");
  EXPECT_EQ(flexible("1,234 dollars"), "1,234");
  EXPECT_EQ(flexible("none"), "");
}

TEST(Reward, SeesTheLast300CharactersWhateverTheirBytes) {
  for (const std::string filler : {"x", "é", "漢", "😀"}) {
    std::string padding;
    for (int i = 0; i < 294; ++i) padding += filler;
    EXPECT_EQ(strict("#### 7" + padding), "7") << filler;
    EXPECT_EQ(strict("#### 7" + padding + filler), "") << filler;
    EXPECT_EQ(strict("é漢😀#### 7" + padding), "7") << filler;
  }
}

// b"\xe2\x82".decode(errors="replace") is one character, b"\xe2\xe2" two, b"\xed\xa0\x80" (a surrogate) three.
TEST(Reward, CountsBrokenBytesAsPythonReplacesThem) {
  const std::pair<std::string, int> broken[] = {{"\xe2\x82", 1},     {"\xe2\xe2", 2}, {"\xed\xa0\x80", 3},
                                                {"\xf0\x9f\x98", 1}, {"\xc0\xaf", 2}, {"\xf5", 1},
                                                {"\x80", 1}};
  for (const auto& [bytes, characters] : broken) {
    const std::string kept(static_cast<size_t>(294 - characters), 'x');
    EXPECT_EQ(strict("zz#### 7" + bytes + kept), "7") << characters;
    EXPECT_EQ(strict("zz#### 7" + bytes + kept + "x"), "") << characters;
  }
}

TEST(Reward, AnUnknownScoringIsAnsweredWithTheNearest) {
  try {
    scoring_by_name("strickt");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'strict'?"), std::string::npos);
  }
}

}  // namespace reward_test
}  // namespace faultline::task
