// A token may end inside a character: bytes wait until the character is whole, or can no longer become one.
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/unicode.h"

namespace faultline::model {
namespace {

// Could these bytes, which are no whole character, still become one?
bool may_become_character(std::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes.size() >= length) return false;
  for (const char filler : {'\x80', '\xbf'}) {  // the least and the greatest way on: one is well-formed if any is
    std::string whole(bytes);
    whole.resize(length, filler);
    if (unicode::sequence_length(whole) == length) return true;
  }
  return false;
}

// How many bytes one U+FFFD stands for: a character as far as it goes (Unicode's "maximal subpart"), or one byte.
size_t broken_length(std::string_view bytes) {
  size_t length = 1;
  while (length < bytes.size() && may_become_character(bytes.substr(0, length + 1))) ++length;
  return length;
}

// Moves what is whole from the front of `pending` into the result; broken bytes become U+FFFD.
std::string take_whole(std::string& pending, bool at_end) {
  std::string shown;
  std::string_view rest = pending;
  while (!rest.empty()) {
    if (const size_t length = unicode::sequence_length(rest)) {
      shown += rest.substr(0, length);
      rest.remove_prefix(length);
    } else if (!at_end && may_become_character(rest)) {
      break;
    } else {
      shown += unicode::kReplacement;
      rest.remove_prefix(broken_length(rest));
    }
  }
  pending = std::string(rest);
  return shown;
}

}  // namespace

std::string StreamDecoder::push(int64_t id) {
  pending_ += tokenizer_.decode({&id, 1}, /*skip_special=*/true);
  return take_whole(pending_, false);
}

std::string to_text(std::string bytes) { return take_whole(bytes, true); }

std::string StreamDecoder::finish() { return take_whole(pending_, true); }

}  // namespace faultline::model
