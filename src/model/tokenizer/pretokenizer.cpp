#include "model/tokenizer/pretokenizer.h"

#include "base/error.h"
#include "model/tokenizer/regex.h"
#include "model/tokenizer/unicode.h"

namespace faultline::model {
namespace {

void isolate_digits(std::string_view text, std::vector<std::string_view>& pieces) {
  const uint8_t* classes = unicode::class_table();
  size_t from = 0;
  for (size_t at = 0; at < text.size();) {
    const unicode::CodePoint point = unicode::decode(text.data() + at);
    if (classes[point.value] & unicode::kDigit) {
      if (from != at) pieces.push_back(text.substr(from, at - from));
      pieces.push_back(text.substr(at, point.length));
      from = at + point.length;
    }
    at += point.length;
  }
  if (from != text.size()) pieces.push_back(text.substr(from));
}

}  // namespace

Pretokenizer::Pretokenizer(std::vector<WordStep> steps, const std::string& origin) : steps_(std::move(steps)) {
  for (const WordStep& step : steps_) {
    const bool by_pcre2 = step.kind == WordStep::Kind::kPattern && step.pattern == WordPattern::kOther;
    regexes_.push_back(by_pcre2 ? std::make_unique<Regex>(step.regex, origin) : nullptr);
  }
}

Pretokenizer::~Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;

void Pretokenizer::cut(size_t step, const Pieces& from, Pieces& to) const {
  for (const std::string_view piece : from) {
    if (steps_[step].kind == WordStep::Kind::kDigits) {
      isolate_digits(piece, to);
    } else if (regexes_[step]) {
      regexes_[step]->isolate(piece, to);
    } else {
      for (const char *at = piece.data(), *end = at + piece.size(); at != end;) {
        const char* stop = word_end(steps_[step].pattern, at, end);
        to.emplace_back(at, static_cast<size_t>(stop - at));
        at = stop;
      }
    }
  }
}

}  // namespace faultline::model
