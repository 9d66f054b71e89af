// A pattern of a tokenizer file, run by PCRE2 with Unicode properties. The files are written in Oniguruma's dialect
// (Ruby's); what means something else in PCRE2 is refused. A match may cost only so much: a pattern that needs more
// ends in a sentence, not in an hour.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace faultline::model {

class Regex {
 public:
  Regex(std::string pattern, std::string origin);  // `origin`: file and field, opens the messages

  // Appends the matches and what lies between them to `pieces`, without the empty ones. Well-formed UTF-8 only.
  void isolate(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Compiled;
  std::string pattern_;
  std::string origin_;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace faultline::model
