// Cuts text into the words that merges may not cross. The three patterns in use (GPT-2, Qwen2, Llama 3) are matched by
// hand, with the Unicode classes of Hugging Face's tokenizers; any other goes through PCRE2, whose Unicode is older and
// whose dialect differs from theirs in a few places that are refused.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {

class Regex;

// The patterns as files write them; kOther for any text but these.
std::string_view pattern_text(WordPattern pattern);
WordPattern recognise_pattern(std::string_view regex);

// The end of the first word of a text that is not empty and well-formed UTF-8.
const char* word_end(WordPattern pattern, const char* at, const char* end);

class Pretokenizer {
 public:
  Pretokenizer(std::vector<WordStep> steps, const std::string& origin);  // `origin` opens the messages
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;

  // Calls word(std::string_view) for each word of well-formed UTF-8, in order.
  template <class Function>
  void each_word(std::string_view text, const Function& word) const;

 private:
  using Pieces = std::vector<std::string_view>;
  void cut(size_t step, const Pieces& from, Pieces& to) const;

  std::vector<WordStep> steps_;
  std::vector<std::unique_ptr<Regex>> regexes_;  // one for each step, null where it needs none
};

template <class Function>
void Pretokenizer::each_word(std::string_view text, const Function& word) const {
  if (text.empty()) return;
  Pieces pieces{text};
  Pieces next;
  for (size_t step = 0; step < steps_.size(); ++step) {
    const bool last = step + 1 == steps_.size();
    if (last && regexes_[step] == nullptr && steps_[step].kind == WordStep::Kind::kPattern) {  // without a list
      for (const std::string_view piece : pieces)
        for (const char *at = piece.data(), *end = at + piece.size(); at != end;) {
          const char* stop = word_end(steps_[step].pattern, at, end);
          word(std::string_view(at, static_cast<size_t>(stop - at)));
          at = stop;
        }
      return;
    }
    next.clear();
    cut(step, pieces, next);
    pieces.swap(next);
  }
  for (const std::string_view piece : pieces) word(piece);
}

}  // namespace faultline::model
