#include "model/tokenizer/regex.h"

#include <fmt/format.h>

#include "base/config/config.h"
#include "base/error.h"
#include "model/tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace faultline::model {
namespace {

constexpr uint32_t kMatchLimit = 1'000'000;  // steps of one match; PCRE2's own default is ten times that
constexpr uint32_t kHeapLimitKib = 65'536;
constexpr size_t kMaxPatternBytes = 65'536;

template <auto release>
struct Releaser {
  template <class T>
  void operator()(T* resource) const {
    release(resource);
  }
};
using MatchData = std::unique_ptr<pcre2_match_data, Releaser<pcre2_match_data_free>>;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

// What Ruby's dialect reads otherwise than PCRE2, or nothing: ^ and $ are lines' ends there, \h is a hexadecimal digit,
// (?m) lets a dot match newlines, [a&&b] intersects.
std::string other_in_ruby(std::string_view pattern) {
  bool in_class = false;
  for (size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c == '\\' && at + 1 < pattern.size()) {
      if (std::string_view("hHXZGKRQENC").find(pattern[++at]) != std::string_view::npos)
        return fmt::format("\\{}", pattern[at]);
    } else if (in_class) {
      if (c == '[') return "a class within a class";
      if (c == '&' && pattern.substr(at, 2) == "&&") return "&&";
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (at + 1 < pattern.size() && pattern[at + 1] == '^') ++at;
    } else if (c == '^' || c == '$') {
      return std::string(1, c);
    } else if (pattern.substr(at, 2) == "(*") {
      return "(*";
    } else if (pattern.substr(at, 2) == "(?") {
      const std::string_view options = pattern.substr(at + 2, pattern.substr(at + 2).find_first_of(":)=!<>"));
      if (options.find_first_not_of("i-") != std::string_view::npos) return fmt::format("(?{}", options);
    }
  }
  return "";
}

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, Releaser<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_context, Releaser<pcre2_match_context_free>> context;
};

Regex::Regex(std::string pattern, std::string origin) : pattern_(std::move(pattern)), origin_(std::move(origin)) {
  if (pattern_.size() > kMaxPatternBytes)
    throw UsageError(
        fmt::format("{}: a pattern of {} bytes; at most {} are supported", origin_, pattern_.size(), kMaxPatternBytes));
  if (const std::string other = other_in_ruby(pattern_); !other.empty())
    throw UsageError(fmt::format("{}: {} in the pattern {} is not supported: Oniguruma and PCRE2 read it differently",
                                 origin_, describe_text(other), describe_text(pattern_)));
  int error = 0;
  PCRE2_SIZE place = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern_.data()), pattern_.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place, nullptr));
  if (!compiled->code)
    throw UsageError(fmt::format("{}: the pattern {} is not valid: {}, at byte {}", origin_, describe_text(pattern_),
                                 message_of(error), place));
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower, not other
  compiled->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(compiled->context.get(), kMatchLimit);
  pcre2_set_heap_limit(compiled->context.get(), kHeapLimitKib);
  compiled_ = std::move(compiled);
}

void Regex::isolate(std::string_view text, std::vector<std::string_view>& pieces) const {
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto keep = [&](size_t from, size_t to) {
    if (from != to) pieces.push_back(text.substr(from, to - from));
  };
  size_t kept = 0;  // everything before is in pieces
  for (size_t at = 0; at < text.size();) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(compiled_->code.get(), subject, text.size(), at, options, data.get(),
                         compiled_->context.get());
    };
    int found = match(PCRE2_NO_UTF_CHECK);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw UsageError(fmt::format("{}: the pattern {} cannot be matched against a text of {} bytes: {}", origin_,
                                   describe_text(pattern_), text.size(), message_of(found)));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const size_t start = range[0];
    const size_t stop = range[1];
    FL_ASSERT(kept <= start && start <= stop && stop <= text.size());  // only \K could break it, and is refused
    keep(kept, start);
    keep(start, stop);
    at = kept = stop;
    if (start == stop && stop < text.size()) at += unicode::decode(text.data() + stop).length;
  }
  keep(kept, text.size());
}

}  // namespace faultline::model
