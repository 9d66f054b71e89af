// What a tokenizer is made of, whichever file it came from: tokenizer.json and GGUF values are both read into this
// description, which holds only what we can do; everything else has been refused by name before. Tokens are kept as
// the bytes they stand for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "model/checkpoint/gguf.h"

namespace faultline::model {

// Tables by id are as long as the largest id, and added tokens are tried at every place of a text: limits for what a
// file may ask for.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 20) - 1;
inline constexpr size_t kMaxAddedTokenBytes = 1024;

enum class WordPattern { kGpt2, kQwen2, kLlama3, kOther };

struct WordStep {  // one stage of the pre-tokenizer; each cuts the pieces of the one before
  enum class Kind { kDigits, kPattern } kind = Kind::kPattern;
  WordPattern pattern = WordPattern::kGpt2;
  std::string regex = {};  // kOther: for PCRE2
};

struct Token {
  enum class Kind : uint8_t {
    kNone,   // no token has this id
    kBytes,  // an entry of the vocabulary in the byte alphabet: what merges work on
    kText,   // an added token, or an entry that is not of the alphabet: stands for its own UTF-8
  } kind = Kind::kNone;
  bool special = false;
  std::string bytes = {};
};

struct AddedToken {
  int64_t id = 0;
  std::string content = {};
  bool single_word = false;  // only between non-words
  bool lstrip = false;       // takes the white space to its left
  bool rstrip = false;
  bool normalized = false;  // looked for in the normalised text
  bool special = false;
};

struct Merge {  // left followed by right becomes result
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
};

struct TokenizerSpec {
  std::string origin;         // the file, for messages
  std::vector<Token> tokens;  // by id
  std::vector<Merge> merges;  // the first is the most eager
  std::vector<AddedToken> added;
  bool ignore_merges = false;  // a word that is a token needs no merges
  bool nfc = false;
  std::vector<WordStep> steps;
  std::vector<int64_t> prefix;  // ids before every text
  std::vector<int64_t> end_tokens;
  std::string chat_template;  // empty: none
};

// Fills tokens, merges and added of a spec, checking each; `place` ("model.vocab['a']") opens the complaints.
class VocabularyBuilder {
 public:
  explicit VocabularyBuilder(TokenizerSpec& spec) : spec_(spec) {}
  void add_token(const std::string& place, const std::string& written, int64_t id);
  void add_merge(const std::string& place, const std::string& left, const std::string& right);
  void add_added_token(const std::string& place, AddedToken token);  // may repeat an entry of the vocabulary
  std::optional<int64_t> id_of(const std::string& written) const;
  bool has_all_bytes() const;

 private:
  Token& slot(const std::string& place, int64_t id);
  int32_t merged_id(const std::string& place, const std::string& written) const;
  [[noreturn]] void refuse(const std::string& place, const std::string& complaint) const;

  TokenizerSpec& spec_;
  std::unordered_map<std::string, int32_t> ids_;  // of the vocabulary, as written
  std::unordered_map<std::string, int32_t> added_ids_;
};

// The byte alphabet of GPT-2: each byte has a printable character. nullopt where a character is none of them.
std::optional<std::string> bytes_from_alphabet(std::string_view written);
std::string to_alphabet(std::string_view bytes);

// The tokenizer of a GGUF file in Hugging Face's form: tokenizer.json, tokenizer_config.json, generation_config.json.
// Only the kinds whose cutting of words we know exactly: byte-level BPE ("gpt2") with the pre-tokenizer smollm or
// qwen2.

// What differs between the tokenizer.json files that we write.
struct TokenizerParts {
  Json added_tokens, normalizer, pre_tokenizer, decoder, vocabulary, merges;
};
Json byte_level_bpe_json(TokenizerParts parts);

// UsageError naming file and key.
Json tokenizer_json(const GgufFile& file);
Json tokenizer_config_json(const GgufFile& file);
Json generation_config_json(const GgufFile& file);

// Reads a tokenizer from the values of a GGUF file. GGUF names the pre-tokenizer instead of spelling it; the names we
// know are below, with what Hugging Face's own files for these models say. A name we do not know is refused: the wrong
// pattern gives other ids without a word.

struct GgufTokenType {  // of tokenizer.ggml.token_type
  enum : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5 };
};

TokenizerSpec read_tokenizer_values(const std::map<std::string, GgufValue>& values, const std::string& origin);

// Reads tokenizer.json and the files beside it. Strict: what we cannot do exactly (another model, normaliser,
// pre-tokenizer, an unknown key) is refused by its name and its path in the file, because a step that is skipped gives
// other ids without a word.

// `origin` names the file in messages. UsageError for anything that is not supported or damaged.
TokenizerSpec read_tokenizer_json(std::string_view text, const std::string& origin);

// Reads the file, then tokenizer_config.json, chat_template.jinja and generation_config.json where they exist.
TokenizerSpec read_tokenizer_files(const std::filesystem::path& tokenizer_json);

}  // namespace faultline::model
