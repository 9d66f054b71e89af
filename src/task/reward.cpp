// The two scorers of verl's GSM8K reward, without a regular expression engine. A response is bytes here and a Python
// string there: its last 300 characters are Unicode characters, and bytes that are not UTF-8 count as Python's
// `errors="replace"` would make characters of them (Unicode 15, table 3-7: one for each maximal subpart).
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "task/task.h"

namespace faultline::task {
namespace {

constexpr size_t kLastCharacters = 300;

bool in_range(char c, uint8_t low, uint8_t high) {
  const auto byte = static_cast<uint8_t>(c);
  return byte >= low && byte <= high;
}

// Bytes of the first character of a text that is not empty.
size_t character_bytes(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  size_t length = 1;
  if (in_range(text[0], 0xC2, 0xDF)) length = 2;
  if (in_range(text[0], 0xE0, 0xEF)) length = 3;
  if (in_range(text[0], 0xF0, 0xF4)) length = 4;
  for (size_t i = 1; i < length; ++i) {
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1 && lead == 0xE0) low = 0xA0;   // overlong
    if (i == 1 && lead == 0xED) high = 0x9F;  // surrogates
    if (i == 1 && lead == 0xF0) low = 0x90;   // overlong
    if (i == 1 && lead == 0xF4) high = 0x8F;  // beyond U+10FFFF
    if (i == text.size() || !in_range(text[i], low, high)) return i;
  }
  return length;
}

std::string_view last_characters(std::string_view text) {
  if (text.size() <= kLastCharacters) return text;
  size_t count = 0;
  for (std::string_view rest = text; !rest.empty(); ++count) rest.remove_prefix(character_bytes(rest));
  for (; count > kLastCharacters; --count) text.remove_prefix(character_bytes(text));
  return text;
}

bool is_number_character(char c) { return in_range(c, '0', '9') || c == '.' || c == ','; }

// The match of \-?[0-9\.\,]+ that starts at `text`, or "".
std::string_view number_at(std::string_view text) {
  const size_t sign = text.starts_with('-') ? 1 : 0;
  const auto end = std::find_if_not(text.begin() + static_cast<ptrdiff_t>(sign), text.end(), is_number_character);
  const auto length = static_cast<size_t>(end - text.begin());
  return length > sign ? text.substr(0, length) : std::string_view();
}

// The last match of "#### (\-?[0-9\.\,]+)", commas removed. (verl also removes `$`, which the pattern cannot hold.)
std::string strict_answer(std::string_view text) {
  constexpr std::string_view kMark = "#### ";
  for (size_t place = text.rfind(kMark); place != std::string_view::npos; place = text.rfind(kMark, place - 1)) {
    std::string number(number_at(text.substr(place + kMark.size())));
    if (!number.empty()) {
      std::erase(number, ',');
      return number;
    }
    if (place == 0) break;
  }
  return "";
}

// The last match of (\-?[0-9\.\,]+) that is not "."; if all are, ".". Commas stay, as in verl.
std::string flexible_answer(std::string_view text) {
  std::string_view answer;
  while (!text.empty()) {
    const std::string_view number = number_at(text);
    if (!number.empty() && (number != "." || answer.empty())) answer = number;
    text.remove_prefix(std::max<size_t>(number.size(), 1));
  }
  return std::string(answer);
}

}  // namespace

Scoring scoring_by_name(const std::string& name) {
  if (name == "strict") return Scoring::kStrict;
  if (name == "flexible") return Scoring::kFlexible;
  const std::vector<std::string> known = {"strict", "flexible"};
  throw UsageError("scoring: wanted strict or flexible, got '" + name + "'" + did_you_mean(name, known));
}

std::string extract_answer(std::string_view response, Scoring scoring) {
  const std::string_view text = last_characters(response);
  return scoring == Scoring::kStrict ? strict_answer(text) : flexible_answer(text);
}

double reward(std::string_view response, std::string_view answer, Scoring scoring) {
  const std::string found = extract_answer(response, scoring);
  return !found.empty() && found == answer ? 1.0 : 0.0;
}

}  // namespace faultline::task
