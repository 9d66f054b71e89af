#include "model/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace faultline::model::unicode {
namespace {

struct Range {
  uint32_t first, last;
  uint8_t classes;
};
constexpr Range kRanges[] = {
#include "model/tokenizer/unicode_classes.inc"
};
constexpr uint32_t kCodePoints = 0x110000;

// Dives Akuru's OO (Unicode 13): the one pair of younger characters that utf8proc composes.
constexpr uint32_t kDivesAkuruAa = 0x11930;
constexpr uint32_t kDivesAkuruOo = 0x11938;

// One below the first trailing consonant of Hangul (TBase in Unicode's algorithm, chapter 3.12): it composes with
// nothing, but utf8proc takes it for "no trailing consonant" and swallows it behind a syllable.
constexpr uint32_t kHangulTBase = 0x11a7;

// Neither moved nor composed by Hugging Face's NFC, though utf8proc would.
bool is_left_alone(uint32_t code_point) {
  if (code_point == kDivesAkuruAa || code_point == kDivesAkuruOo || code_point == kHangulTBase) return true;
  return (class_table()[code_point] & kMark) == 0 &&
         utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point))->combining_class != 0;
}

void append_nfc(std::string& out, std::string_view text) {
  if (is_plainly_nfc(text)) {
    out += text;
    return;
  }
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size < 0) throw RuntimeFailure(std::string("NFC: ") + utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(size));
  std::free(composed);
}

}  // namespace

const uint8_t* class_table() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> classes(kCodePoints, 0);
    for (const Range& range : kRanges)
      std::fill(classes.begin() + range.first, classes.begin() + range.last + 1, range.classes);
    return classes;
  }();
  return table.data();
}

size_t sequence_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // The second byte excludes overlong forms (e0, f0), surrogates (ed) and what is beyond U+10FFFF (f4).
  const bool wrong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
                     (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f);
  return wrong ? 0 : length;
}

size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;  // bytes at once, while they are ASCII
    if (text.size() - at >= 8) std::memcpy(&eight, text.data() + at, 8);
    if (text.size() - at >= 8 && (eight & 0x8080808080808080u) == 0) {
      at += 8;
      continue;
    }
    const size_t length = sequence_length(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

size_t invalid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && sequence_length(text.substr(at)) == 0) ++at;
  return at;
}

CodePoint decode_last(std::string_view text) {
  const char* at = text.data() + text.size() - 1;
  while ((static_cast<unsigned char>(*at) & 0xc0) == 0x80) --at;
  return decode(at);
}

void append_utf8(std::string& text, uint32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

bool is_plainly_nfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xcc; });
}

std::string nfc(std::string_view text) {
  std::string out;
  size_t from = 0;
  if (is_plainly_nfc(text)) return std::string(text);
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = decode(text.data() + at);
    if (point.value >= 0x300 && is_left_alone(point.value)) {  // a wall: the parts left and right of it do not meet
      append_nfc(out, text.substr(from, at - from));
      out += text.substr(at, point.length);
      from = at + point.length;
    }
    at += point.length;
  }
  append_nfc(out, text.substr(from));
  return out;
}

}  // namespace faultline::model::unicode
