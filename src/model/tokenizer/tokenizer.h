// Byte-level BPE as Hugging Face's tokenizers have it: an optional normalisation, a pattern that cuts text into words,
// merges by rank within each word; added tokens are cut out first. From tokenizer.json or from a GGUF file's values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace faultline::model {

class GgufFile;
struct TokenizerSpec;

struct Message {
  std::string role;  // system, user, assistant
  std::string content;
};

class Tokenizer {
 public:
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // tokenizer.json, with tokenizer_config.json, chat_template.jinja and generation_config.json beside it where they
  // exist.
  static Tokenizer from_file(const std::filesystem::path& tokenizer_json);
  static Tokenizer from_gguf(const GgufFile& file);
  static Tokenizer from_spec(TokenizerSpec spec);  // what both of them read a file into

  // Text -> ids; added tokens in the text are recognised, special ones only if parse_special. Bytes that are not UTF-8
  // are encoded as the bytes they are, each run of them apart, and decode to themselves. A byte that the vocabulary has
  // no token for is left out, as Hugging Face does: SmolLM2 lacks six control characters, F1 and F2 (the leads of
  // planes 4 to 11, where nothing is assigned), and the 13 bytes that UTF-8 never uses.
  std::vector<int64_t> encode(std::string_view text, bool parse_special = true) const;
  // Ids -> bytes, exactly; skip_special leaves special tokens out. A model's table is often padded, and a faulty one
  // may answer with a row that no token has: that is U+FFFD. A negative id: UsageError.
  std::string decode(std::span<const int64_t> ids, bool skip_special = false) const;
  const std::string& bytes_of(int64_t id) const;  // UsageError where no token has it
  bool has_token(int64_t id) const;

  int64_t vocabulary_size() const;  // one more than the largest id
  std::optional<int64_t> id_of(
      std::string_view token) const;        // of an added token or a vocabulary entry as it is written
  std::vector<int64_t> end_tokens() const;  // where generation stops: eos and the chat template's end of turn

  bool has_chat_template() const;
  // The ChatML text of a conversation, the default system message included where the template has one; ends with the
  // assistant's opening if add_generation_prompt. UsageError naming the template where it is not of the ChatML kind.
  std::string render_chat(std::span<const Message> messages, bool add_generation_prompt) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Bytes -> UTF-8: what is broken becomes U+FFFD, one for each character begun or stray byte.
std::string to_text(std::string bytes);

// Ids one after another -> text that never ends inside a UTF-8 character.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(int64_t id);  // what can be shown now; special tokens give nothing, no token U+FFFD
  std::string finish();          // what is left; incomplete bytes become U+FFFD

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace faultline::model
