// The values of a GGUF file as a tokenizer, without a file.
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {
namespace tokenizer_gguf_test {

using Values = std::map<std::string, GgufValue>;

Values small_values() {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"};
  std::vector<int64_t> types = {3, 3, 3, 4};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(to_alphabet(std::string(1, static_cast<char>(byte))));
  tokens.push_back("ab");
  tokens.push_back("[PAD261]");
  types.resize(tokens.size(), 1);
  types.back() = 5;
  return {{"tokenizer.ggml.model", std::string("gpt2")},
          {"tokenizer.ggml.pre", std::string("smollm")},
          {"tokenizer.ggml.tokens", tokens},
          {"tokenizer.ggml.token_type", types},
          {"tokenizer.ggml.merges", std::vector<std::string>{"a b"}},
          {"tokenizer.ggml.eos_token_id", int64_t{2}},
          {"tokenizer.ggml.bos_token_id", int64_t{1}}};
}

Tokenizer load(const Values& values) { return Tokenizer::from_spec(read_tokenizer_values(values, "m.gguf")); }

std::string refusal(const std::string& key, GgufValue value) {
  Values values = small_values();
  values["tokenizer." + key] = std::move(value);
  try {
    load(values);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

using Ids = std::vector<int64_t>;

TEST(TokenizerGguf, ReadsTokensMergesTypesAndEnds) {
  const Tokenizer tokenizer = load(small_values());
  EXPECT_EQ(tokenizer.encode("ab<|im_end|><tool>12"), (Ids{260, 2, 3, 4 + '1', 4 + '2'}));
  EXPECT_EQ(tokenizer.decode(Ids{260, 2, 3}, true), "ab<tool>");  // user-defined tokens are not special
  EXPECT_EQ(tokenizer.end_tokens(), (Ids{2}));
  EXPECT_EQ(tokenizer.vocabulary_size(), 262);
  EXPECT_EQ(tokenizer.encode("[PAD261]").size(), 8u);  // an unused entry is text
  EXPECT_FALSE(tokenizer.has_chat_template());
}

TEST(TokenizerGguf, AddsTheBosTheFileAsksFor) {
  Values values = small_values();
  values["tokenizer.ggml.add_bos_token"] = true;
  EXPECT_EQ(load(values).encode("ab"), (Ids{1, 260}));
}

TEST(TokenizerGguf, RefusesByNameWhatItCannotDo) {
  using Texts = std::vector<std::string>;
  EXPECT_NE(refusal("ggml.model", std::string("llama")).find("m.gguf: tokenizer.ggml.model: 'llama' is not supported"),
            std::string::npos);
  EXPECT_NE(refusal("ggml.pre", std::string("tekken")).find("'tekken' is not supported; known: smollm"),
            std::string::npos);
  EXPECT_NE(refusal("ggml.pre", int64_t{3}).find("wanted the pre-tokenizer's name"), std::string::npos);
  EXPECT_NE(refusal("ggml.merges", Texts{"ab"}).find("ggml.merges[0]: wanted two tokens"), std::string::npos);
  EXPECT_NE(refusal("ggml.merges", Texts{"b a"}).find("'ba' is not in the vocabulary"), std::string::npos);
  EXPECT_NE(refusal("ggml.token_type", std::vector<int64_t>{1}).find("1 types for 262 tokens"), std::string::npos);
  EXPECT_NE(refusal("ggml.token_type", std::vector<int64_t>(262, 6)).find("the type 6 is not supported"),
            std::string::npos);
  EXPECT_NE(refusal("ggml.tokens", Texts(262, "a")).find("has two ids"), std::string::npos);
  EXPECT_NE(refusal("ggml.eos_token_id", int64_t{262}).find("no token has the id 262"), std::string::npos);
  EXPECT_NE(refusal("ggml.add_eos_token", true).find("add_eos_token"), std::string::npos);
}

}  // namespace tokenizer_gguf_test
}  // namespace faultline::model
