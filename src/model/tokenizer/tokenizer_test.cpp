// The tokenizer on small vocabularies built here: what the Python tests cannot reach (bytes that are not UTF-8, hostile
// files) and what must hold without any other library. Equal ids with Hugging Face's: tests/tokenizer_test.py.
#include "model/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {
namespace tokenizer_test {

// 256 bytes as ids 0 to 255, then the merges' results, then <|im_start|> and <|im_end|>.
Json small_json(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[to_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  Json rules = Json::array();
  for (const auto& [left, right] : merges) {
    rules.push_back(to_alphabet(left) + " " + to_alphabet(right));
    vocab.emplace(to_alphabet(left + right), vocab.size());
  }
  Json added = Json::array();
  for (const char* name : {"<|im_start|>", "<|im_end|>"})
    added.push_back({{"id", vocab.size() + added.size()},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", rules}}}};
}

Tokenizer load(const Json& json) { return Tokenizer::from_spec(read_tokenizer_json(json.dump(), "t.json")); }

std::string refusal(const std::string& text) {
  try {
    Tokenizer::from_spec(read_tokenizer_json(text, "t.json"));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}
std::string refusal(const Json& json) { return refusal(json.dump()); }

using Ids = std::vector<int64_t>;

const std::vector<std::pair<std::string, std::string>> kMerges = {{"a", "b"}, {"b", "c"}, {"ab", "c"}, {" ", "a"}};

TEST(Tokenizer, MergesTheLowestRankFirst) {
  const Tokenizer tokenizer = load(small_json(kMerges));
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{258}));  // ab, then abc; never a + bc
  EXPECT_EQ(tokenizer.encode("bcab"), (Ids{257, 256}));
  EXPECT_EQ(tokenizer.encode("x ab"), (Ids{'x', ' ', 256}));  // a b comes before the space and a
  EXPECT_EQ(tokenizer.encode("x a"), (Ids{'x', 259}));
}

TEST(Tokenizer, GivesAPairThatIsNamedTwiceItsLastRank) {
  const Tokenizer tokenizer = load(small_json({{"a", "b"}, {"b", "c"}, {"a", "b"}}));
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{'a', 257}));  // b c comes first now
}

TEST(Tokenizer, GivesNothingForEmptyTextAndKeepsNulBytes) {
  const Tokenizer tokenizer = load(small_json(kMerges));
  EXPECT_TRUE(tokenizer.encode("").empty());
  const std::string zeros("a\0b\0", 4);
  EXPECT_EQ(tokenizer.encode(zeros), (Ids{'a', 0, 'b', 0}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(zeros)), zeros);
}

TEST(Tokenizer, EncodesBrokenUtf8ByteByByteAndGivesItBack) {
  // é written in Latin-1, a lone continuation, an overlong slash, a surrogate, beyond U+10FFFF, a character cut off
  const Tokenizer tokenizer = load(small_json({{"\xc3", "\xa9"}, {"\xa9", "\xa9"}}));
  EXPECT_EQ(tokenizer.encode("\xc3\xa9"), (Ids{256}));
  EXPECT_EQ(tokenizer.encode("x\xa9\xa9y"), (Ids{'x', 0xa9, 0xa9, 'y'}));  // a run of broken bytes is not merged
  for (const char* broken : {"caf\xe9 au lait", "\x80", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\xf0\x9f\x98",
                             "\xff\xfe ok \xc3\xa9"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(broken)), broken);
  }
}

TEST(Tokenizer, GivesBackEveryByteSequenceOfLengthTwoAndRandomBytes) {
  const Tokenizer tokenizer = load(small_json(kMerges));
  for (int first = 0; first < 256; ++first)
    for (int second = 0; second < 256; ++second) {
      const std::string text{static_cast<char>(first), static_cast<char>(second)};
      ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    }
  uint64_t state = 1;
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (int i = 0; i < 40; ++i)
      text += static_cast<char>((state = state * 6364136223846793005u + 1442695040888963407u) >> 56);
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, EncodesAWordOfAMegabyteQuickly) {
  const Tokenizer tokenizer = load(small_json({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}}));
  const std::string word((1 << 20) + 3, 'a');
  const Ids ids = tokenizer.encode(word);
  EXPECT_EQ(ids.size(), (1u << 17) + 2);  // 8 a's each, then aa, a
  EXPECT_EQ(tokenizer.decode(ids), word);
}

TEST(Tokenizer, MergesLongWordsAsItMergesShortOnes) {  // the queue and the scan must agree
  const Tokenizer tokenizer = load(small_json({{"b", "a"}, {"a", "b"}, {"ab", "a"}, {"ba", "ba"}, {"a", "a"}}));
  uint64_t state = 7;
  for (int trial = 0; trial < 300; ++trial) {
    std::string word;
    for (int i = 0; i < 40; ++i)
      word += (state = state * 6364136223846793005u + 1442695040888963407u) >> 63 ? 'a' : 'b';
    const Ids alone = tokenizer.encode(word);
    const Ids twice = tokenizer.encode(word + std::string(20, 'z') + word);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), twice.begin())) << word;
    ASSERT_TRUE(std::equal(alone.rbegin(), alone.rend(), twice.rbegin())) << word;
  }
}

TEST(Tokenizer, RecognisesAddedTokensOnlyWhenAsked) {
  const Tokenizer tokenizer = load(small_json(kMerges));
  EXPECT_EQ(tokenizer.encode("ab<|im_end|>ab"), (Ids{256, 261, 256}));
  EXPECT_EQ(tokenizer.encode("<|im_end|>", false).size(), 10u);
  EXPECT_EQ(tokenizer.decode(Ids{256, 261}), "ab<|im_end|>");
  EXPECT_EQ(tokenizer.decode(Ids{256, 261}, true), "ab");
  EXPECT_EQ(tokenizer.id_of("<|im_end|>"), 261);
  EXPECT_EQ(tokenizer.id_of(to_alphabet(" a")), 259);
  EXPECT_FALSE(tokenizer.id_of("zz"));
}

TEST(Tokenizer, LeavesOutAByteThatHasNoToken) {
  Json json = small_json();
  json["model"]["vocab"].erase("x");
  EXPECT_EQ(load(json).encode("axb\xff"), (Ids{'a', 'b', 0xff}));
  json["model"]["unk_token"] = "a";
  EXPECT_NE(refusal(json).find("model.unk_token"), std::string::npos);
}

TEST(Tokenizer, ShowsRowsThatNoTokenHasAndRefusesNegativeIds) {
  Json json = small_json();
  json["model"]["vocab"]["xy"] = 300;
  const Tokenizer tokenizer = load(json);
  EXPECT_EQ(tokenizer.vocabulary_size(), 301);
  EXPECT_EQ(tokenizer.bytes_of(300), "xy");
  for (const int64_t id : {int64_t{299}, int64_t{301}, INT64_MAX}) {
    EXPECT_EQ(tokenizer.decode(Ids{300, id, 300}, true), "xy\xef\xbf\xbdxy")
        << id;  // padding, chosen by a broken model
    EXPECT_THROW(tokenizer.bytes_of(id), UsageError) << id;
  }
  for (const int64_t id : {int64_t{-1}, INT64_MIN}) EXPECT_THROW(tokenizer.decode(Ids{id}), UsageError) << id;
}

TEST(Tokenizer, PutsTheTemplatesTokensBeforeTheText) {
  Json json = small_json();
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing", "pair": [],
    "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [256], "tokens": ["<|im_start|>"]}}})");
  EXPECT_EQ(load(json).encode("a"), (Ids{256, 'a'}));
  json["post_processor"]["special_tokens"]["<|im_start|>"]["ids"][0] = 9999;
  EXPECT_NE(refusal(json).find("no token has the id 9999"), std::string::npos);
  std::swap(json["post_processor"]["single"][0], json["post_processor"]["single"][1]);
  EXPECT_NE(refusal(json).find("only tokens before the text"), std::string::npos);
}

struct Hostile {
  const char* where;   // JSON pointer
  const char* value;   // JSON, or nothing to remove it
  const char* expect;  // in the sentence
};

TEST(Tokenizer, RefusesByNameWhatItCannotDo) {
  const Hostile cases[] = {
      {"/model/type", R"("Unigram")", "t.json: model: 'Unigram' is not supported; wanted BPE"},
      {"/model/byte_fallback", "true", "model.byte_fallback"},
      {"/model/dropout", "0.1", "model.dropout"},
      {"/model/surprise", "1", "the key 'surprise' is not supported"},
      {"/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix"},
      {"/model/vocab/a", "-1", "model.vocab.a: wanted an id from 0 to 1048575, found -1"},
      {"/model/vocab/a", "98", "the id 98 is given to two tokens"},
      {"/model/vocab/a", "4000000000", "wanted an id from 0"},
      {"/model/vocab/a", "18446744073709551615", "wanted an integer"},
      {"/model/vocab/a", "1e300", "wanted an integer"},
      {"/model/vocab/a", R"("97")", "wanted an integer"},
      {"/model/vocab", "[]", "model.vocab: wanted a map"},
      {"/model/merges", R"(["a q q"])", "model.merges[0]: wanted two tokens"},
      {"/model/merges", R"(["aa b"])", "'aa' is not in the vocabulary"},
      {"/model/merges", R"([["a", 7]])", "model.merges[0]: wanted a string"},
      {"/model/merges", "7", "model.merges: wanted a list"},
      {"/normalizer", R"({"type": "NFKC"})", "normalizer: 'NFKC' is not supported"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})",
       "normalizer.normalizers[1]: 'Lowercase'"},
      {"/pre_tokenizer", "null", "pre_tokenizer"},
      {"/pre_tokenizer", R"({"type": "Metaspace"})", "pre_tokenizer: 'Metaspace' is not supported"},
      {"/pre_tokenizer/add_prefix_space", "true", "add_prefix_space"},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}]})",
       "ByteLevel must be the last"},
      {"/decoder", R"({"type": "WordPiece"})", "decoder: 'WordPiece'"},
      {"/truncation", R"({"max_length": 5})", "truncation"},
      {"/post_processor", R"({"type": "BertProcessing"})", "post_processor: 'BertProcessing'"},
      {"/added_tokens/0/id", "97", "the id 97 is given to two tokens"},
      {"/added_tokens/0/id", "-5", "found -5"},
      {"/added_tokens/0/content", R"("")", "added_tokens[0]: an added token is empty"},
      {"/added_tokens/1/content", R"("<|im_start|>")", "is there twice"},
      {"/added_tokens/0/content", R"("a")", "has the id 256 here and 97 in the vocabulary"},
      {"/added_tokens/0/special", "1", "added_tokens[0].special: wanted true or false"},
  };
  for (const Hostile& hostile : cases) {
    Json json = small_json();
    json[Json::json_pointer(hostile.where)] = Json::parse(hostile.value);
    EXPECT_NE(refusal(json).find(hostile.expect), std::string::npos) << hostile.where << ": " << refusal(json);
  }
}

TEST(Tokenizer, RefusesDeepAndBrokenJsonWithoutACrash) {
  EXPECT_NE(refusal(std::string(1 << 20, '[')).find("nested deeper"), std::string::npos);
  EXPECT_NE(refusal(std::string("{\"model\": \"\xff\"}")).find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal(std::string("")).find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal(std::string("[]")).find("wanted a map"), std::string::npos);
  const std::string whole = small_json(kMerges).dump();
  for (size_t size = 0; size < whole.size(); size += 97) EXPECT_NE(refusal(whole.substr(0, size)), "accepted");
}

TEST(Tokenizer, TakesATokenOfAMegabyteButNoSuchAddedToken) {
  Json json = small_json();
  json["model"]["vocab"][std::string(1 << 20, 'a')] = 300;
  EXPECT_EQ(load(json).bytes_of(300).size(), 1u << 20);
  json["added_tokens"][0]["content"] = std::string(1 << 20, 'a');
  EXPECT_NE(refusal(json).find("an added token of 1048576 bytes"), std::string::npos);
}

TEST(StreamDecoder, NeverEndsInsideACharacter) {
  const Tokenizer tokenizer = load(small_json());
  StreamDecoder stream(tokenizer);
  const std::string text = "na\xc3\xafve \xf0\x9f\x98\x80!";
  std::string shown;
  for (const char byte : text) {
    const std::string piece = stream.push(static_cast<unsigned char>(byte));
    EXPECT_EQ(to_text(piece), piece);
    shown += piece;
  }
  EXPECT_EQ(shown + stream.finish(), text);
}

TEST(StreamDecoder, ReplacesWhatCannotBecomeACharacter) {
  const Tokenizer tokenizer = load(small_json());
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(0xe4), "");
  EXPECT_EQ(stream.push(0xb8), "");
  EXPECT_EQ(stream.push('x'), "\xef\xbf\xbdx");
  EXPECT_EQ(stream.push(0xff), "\xef\xbf\xbd");
  EXPECT_EQ(stream.push(257), "");  // special
  EXPECT_EQ(stream.push(0xf0), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace tokenizer_test
}  // namespace faultline::model
