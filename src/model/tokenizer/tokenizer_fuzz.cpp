// Fuzzes the tokenizer's readers and what they build. The input is a tokenizer.json, a zero byte, then text: the file
// is read, the text encoded and decoded again; or, where the first byte is not a brace, a chat template. Refusing is
// fine; anything but a UsageError is a finding, and so is text that comes back changed.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "model/tokenizer/chat.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

bool has_every_byte(const Tokenizer& tokenizer) {
  for (int byte = 0; byte < 256; ++byte)
    if (!tokenizer.id_of(to_alphabet(std::string(1, static_cast<char>(byte))))) return false;
  return true;
}

void check_tokenizer(std::string_view json, std::string_view text) {
  TokenizerSpec spec = read_tokenizer_json(json, "fuzz.json");
  const bool exact = !spec.nfc && spec.prefix.empty() && spec.added.empty();
  const Tokenizer tokenizer = Tokenizer::from_spec(std::move(spec));
  const auto ids = tokenizer.encode(text);
  const std::string back = tokenizer.decode(ids);
  require(!exact || back == text || !has_every_byte(tokenizer));
  StreamDecoder stream(tokenizer);
  std::string shown;
  for (const int64_t id : ids) shown += stream.push(id);
  shown += stream.finish();
  require(to_text(shown) == shown);
}

}  // namespace
}  // namespace faultline::model

FAULTLINE_FUZZ_TARGET(tokenizer_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline;
  using namespace faultline::model;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    if (!input.starts_with('{') || input.starts_with("{%") || input.starts_with("{{")) {
      recognise_chat_template(input);
    } else {
      const size_t end = input.find('\0');
      check_tokenizer(input.substr(0, end), end == std::string_view::npos ? "" : input.substr(end + 1));
    }
  } catch (const UsageError&) {
  }
  return 0;
}
