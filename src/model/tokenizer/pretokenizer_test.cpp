// The hand-written patterns against PCRE2 running the same texts, on characters both know; and what PCRE2 does not
// know, counted, because patterns other than the three go through it.
#include "model/tokenizer/pretokenizer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/tokenizer/regex.h"
#include "model/tokenizer/unicode.h"

namespace faultline::model {
namespace pretokenizer_test {

using Words = std::vector<std::string>;

Words words(const std::vector<WordStep>& steps, std::string_view text) {
  Words found;
  Pretokenizer(steps, "t.json").each_word(text, [&](std::string_view word) { found.emplace_back(word); });
  return found;
}
Words words(WordPattern pattern, std::string_view text) { return words({{.pattern = pattern}}, text); }
Words words_of(const std::string& regex, std::string_view text) {
  return words({{.pattern = WordPattern::kOther, .regex = regex}}, text);
}

TEST(Pretokenizer, CutsAsThePatternsSay) {
  EXPECT_EQ(words(WordPattern::kGpt2, "We'll  go\n\n 12 3!"),
            (Words{"We", "'ll", " ", " go", "\n\n", " 12", " 3", "!"}));
  EXPECT_EQ(words(WordPattern::kQwen2, "WE'LL 12!\n\n x"), (Words{"WE", "'LL", " ", "1", "2", "!\n\n", " x"}));
  EXPECT_EQ(words(WordPattern::kLlama3, "12345\t\tx"), (Words{"123", "45", "\t", "\tx"}));
  EXPECT_EQ(words(WordPattern::kQwen2, "it'\xc5\xbf"), (Words{"it", "'\xc5\xbf"}));  // a long s, as Oniguruma folds it
  EXPECT_TRUE(words(WordPattern::kGpt2, "").empty());
}

TEST(Pretokenizer, IsolatesDigitsBeforeThePattern) {
  const std::vector<WordStep> smollm = {{.kind = WordStep::Kind::kDigits}, {.pattern = WordPattern::kGpt2}};
  EXPECT_EQ(words(smollm, "a  12 b"), (Words{"a", "  ", "1", "2", " b"}));
}

TEST(Pretokenizer, AgreesWithPcre2OnRandomText) {
  const std::string_view alphabet[] = {" ",
                                       " ",
                                       "\n",
                                       "\r",
                                       "\t",
                                       "a",
                                       "B",
                                       "'",
                                       "s",
                                       "L",
                                       "ve",
                                       "1",
                                       "23",
                                       "!",
                                       ".",
                                       "_",
                                       "\xc3\xa9",
                                       "\xe4\xb8\xad",
                                       "\xc2\xa0",
                                       "\xe3\x80\x80",
                                       "\xc2\xbd",
                                       "\xcc\x81",
                                       "\xf0\x9f\x98\x80",
                                       "\xc5\xbf",
                                       "\xd9\xa1"};
  uint64_t state = 42;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      text += alphabet[(state >> 33) % std::size(alphabet)];
    }
    for (const WordPattern pattern : {WordPattern::kGpt2, WordPattern::kQwen2, WordPattern::kLlama3})
      ASSERT_EQ(words(pattern, text), words_of(std::string(pattern_text(pattern)), text)) << text;
  }
}

TEST(Pretokenizer, CountsTheCharactersPcre2DoesNotKnow) {  // Debian 12's PCRE2 has Unicode 14, our table 16
  int letters = 0;
  int numbers = 0;
  int spaces = 0;
  const Regex letter("\\p{L}", "t");
  const Regex number("\\p{N}", "t");
  const Regex space("\\s", "t");
  for (uint32_t code = 1; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text = "_";
    unicode::append_utf8(text, code);
    const auto differs = [&](const Regex& regex, unicode::Class bit) {
      std::vector<std::string_view> pieces;
      regex.isolate(text, pieces);
      return (pieces.size() == 2) != ((unicode::class_table()[code] & bit) != 0);
    };
    letters += differs(letter, unicode::kLetter);
    numbers += differs(number, unicode::kNumber);
    spaces += differs(space, unicode::kSpace);
  }
  EXPECT_LE(letters, 9272);
  EXPECT_LE(numbers, 120);
  EXPECT_EQ(spaces, 1);  // U+180E, for PCRE2 still white space
  RecordProperty("letters", letters);
}

std::string refusal(const std::string& regex, const std::string& text = "") {
  try {
    words_of(regex, text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Regex, KeepsWhatLiesBetweenMatches) {
  EXPECT_EQ(words_of("[0-9]+", "ab12c3"), (Words{"ab", "12", "c", "3"}));
  EXPECT_EQ(words_of("(?=b)", "abab"), (Words{"a", "ba", "b"}));
  EXPECT_EQ(words_of("x*", "axxb"), (Words{"a", "xx", "b"}));
}

TEST(Regex, RefusesAnInvalidPatternByName) {
  EXPECT_NE(refusal("(").find("t.json: the pattern '(' is not valid"), std::string::npos) << refusal("(");
  EXPECT_NE(refusal("\\p{Nonsense}").find("not valid"), std::string::npos);
  EXPECT_NE(refusal(std::string(100000, 'a')).find("at most 65536"), std::string::npos);
}

TEST(Regex, RefusesWhatRubysDialectReadsOtherwise) {
  for (const char* pattern : {"^a", "a$", "\\h", "[a&&b]", "(?m:.)", "(*ACCEPT)", "a\\Kb", "[[:alpha:]]", "(?R)"})
    EXPECT_NE(refusal(pattern).find("read it differently"), std::string::npos) << pattern;
  for (const char* pattern : {"[^a]", "(?i:'s)", "(?=a)", "(?<!a)b", "\\^\\$"})
    EXPECT_EQ(refusal(pattern), "accepted") << pattern;
}

TEST(Regex, EndsACatastrophicPatternWithASentence) {
  std::string text(62, 'a');
  text.replace(60, 2, "cb");  // without a b PCRE2 need not begin
  const std::string sentence = refusal("(a+)+b", text);
  EXPECT_NE(sentence.find("cannot be matched against a text of 62 bytes: match limit exceeded"), std::string::npos)
      << sentence;
}

}  // namespace pretokenizer_test
}  // namespace faultline::model
