// GPT-2's, Qwen2's and Llama 3's patterns by hand: what a backtracking matcher would find first, alternative by
// alternative, in one pass. \s+(?!\S) is a run of white space without its last character, where something follows it.
#include <array>

#include "model/tokenizer/pretokenizer.h"
#include "model/tokenizer/unicode.h"

namespace faultline::model {
namespace {

using unicode::CodePoint;

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr uint8_t kKinds =
    unicode::kLetter | unicode::kNumber | unicode::kSpace;  // of these a character has one or none

struct Cursor {
  const uint8_t* classes = unicode::class_table();

  // What the character at `at` is: kLetter, kNumber, kSpace, or 0 for anything else. Also its length.
  uint8_t kind(const char* at, uint32_t& length) const {
    const CodePoint point = unicode::decode(at);
    length = point.length;
    return classes[point.value] & kKinds;
  }
  // The end of the run of this kind that starts at `at`, of at most `limit` characters.
  const char* run(const char* at, const char* end, uint8_t kind_wanted, size_t limit = SIZE_MAX) const {
    for (uint32_t length = 0; at != end && limit > 0 && kind(at, length) == kind_wanted; --limit) at += length;
    return at;
  }
};

bool is_newline(char c) { return c == '\r' || c == '\n'; }

// 's 't 'm 'd 're 've 'll: the bytes after the apostrophe at `at`, or 0 for none of them. With `any_case` a long s
// (U+017F) is an s, too: Unicode folds it so.
size_t contraction(const char* at, const char* end, bool any_case) {
  if (*at != '\'' || end - at < 2) return 0;
  const auto lower = [any_case](char c) { return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const char first = lower(at[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 1;
  if (end - at < 3) return 0;
  const char second = lower(at[2]);
  if ((second == 'e' && (first == 'r' || first == 'v')) || (first == 'l' && second == 'l')) return 2;
  return any_case && at[1] == '\xc5' && at[2] == '\xbf' ? 2 : 0;
}

// \s+(?!\S)|\s+ for the run of white space [at, stop).
const char* spaces_end(const char* at, const char* stop, const char* end) {
  if (stop == end) return stop;
  const uint32_t last = unicode::decode_last({at, static_cast<size_t>(stop - at)}).length;
  return stop - last == at ? stop : stop - last;
}

const char* gpt2_end(const Cursor& cursor, const char* at, const char* end) {
  if (const size_t letters = contraction(at, end, false)) return at + 1 + letters;
  uint32_t length = 0;
  const char* from = at;
  uint8_t kind = cursor.kind(at, length);
  if (*at == ' ' && end - at > 1) {  // may open a word of any other kind
    const uint8_t next = cursor.kind(at + 1, length);
    if (next != unicode::kSpace) {
      kind = next;
      ++from;
    }
  }
  if (kind == unicode::kSpace) return spaces_end(at, cursor.run(at, end, kind), end);
  return cursor.run(from, end, kind);
}

const char* newer_end(const Cursor& cursor, const char* at, const char* end, size_t digits) {
  if (const size_t letters = contraction(at, end, true)) return at + 1 + letters;
  uint32_t length = 0;
  uint32_t next_length = 0;
  const uint8_t kind = cursor.kind(at, length);
  if (kind == unicode::kLetter) return cursor.run(at, end, kind);
  if (kind == unicode::kNumber) return cursor.run(at, end, kind, digits);
  const char* second = at + length;
  const uint8_t next = second == end ? static_cast<uint8_t>(unicode::kSpace) : cursor.kind(second, next_length);
  if (next == unicode::kLetter && !is_newline(*at)) return cursor.run(second, end, next);
  if (kind == 0 || (*at == ' ' && next == 0)) {
    const char* stop = cursor.run(kind == 0 ? at : second, end, 0);
    while (stop != end && is_newline(*stop)) ++stop;
    return stop;
  }
  const char* stop = cursor.run(at, end, unicode::kSpace);
  for (const char* newline = stop; newline != at; --newline)
    if (is_newline(newline[-1])) return newline;
  return spaces_end(at, stop, end);
}

}  // namespace

std::string_view pattern_text(WordPattern pattern) {
  switch (pattern) {
    case WordPattern::kGpt2: return kGpt2;
    case WordPattern::kQwen2: return kQwen2;
    case WordPattern::kLlama3: return kLlama3;
    case WordPattern::kOther: break;
  }
  return {};
}

WordPattern recognise_pattern(std::string_view regex) {
  for (const WordPattern pattern : {WordPattern::kGpt2, WordPattern::kQwen2, WordPattern::kLlama3})
    if (regex == pattern_text(pattern)) return pattern;
  return WordPattern::kOther;
}

const char* word_end(WordPattern pattern, const char* at, const char* end) {
  const Cursor cursor;
  if (pattern == WordPattern::kGpt2) return gpt2_end(cursor, at, end);
  return newer_end(cursor, at, end, pattern == WordPattern::kLlama3 ? 3 : 1);
}

}  // namespace faultline::model
