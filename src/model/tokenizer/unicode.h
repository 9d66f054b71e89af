// Unicode as the tokenizer needs it: well-formed UTF-8, the classes of code points, NFC. The classes come from a table
// that was asked of Hugging Face's tokenizers (unicode_classes.py): PCRE2 and utf8proc are of other Unicode versions,
// and a letter that one of them does not know yet would cut a word in two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace faultline::model::unicode {

inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

enum Class : uint8_t {
  kLetter = 1,  // \p{L}
  kNumber = 2,  // \p{N}
  kSpace = 4,   // \s
  kDigit = 8,   // what the pre-tokenizer Digits isolates: \p{N} of a newer Unicode
  kWord = 16,   // \w
  kMark = 32,   // NFC moves it
};

// 0x110000 entries of Class bits.
const uint8_t* class_table();

// The length of the well-formed UTF-8 sequence that starts the text (no overlong form, no surrogate, at most U+10FFFF);
// 0 where none does.
size_t sequence_length(std::string_view text);

// How many bytes at the start of the text are well-formed UTF-8, and how many begin no well-formed sequence.
size_t valid_prefix(std::string_view text);
size_t invalid_prefix(std::string_view text);

struct CodePoint {
  uint32_t value;
  uint32_t length;  // in bytes
};

// `at` must be the start of a well-formed sequence.
inline CodePoint decode(const char* at) {
  const auto byte = [at](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(at[i])); };
  if (byte(0) < 0x80) return {byte(0), 1};
  if (byte(0) < 0xe0) return {(byte(0) & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (byte(0) < 0xf0) return {(byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}
CodePoint decode_last(std::string_view text);  // of a text that is not empty

void append_utf8(std::string& text, uint32_t code_point);

// NFC of well-formed UTF-8 as Hugging Face's tokenizers have it, whose marks are those of Unicode 9: younger ones stay
// where they are.
bool is_plainly_nfc(std::string_view text);  // everything below U+0300: nothing to do
std::string nfc(std::string_view text);

}  // namespace faultline::model::unicode
