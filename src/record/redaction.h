// Secrets taken out of text that is about to leave the machine: logs of somebody else's program, and records. Three
// things are looked for, because none of them alone is enough: names that say that what follows is a secret
// (`HF_TOKEN=…`, `"api_key": "…"`, `Authorization: …`), forms that tokens of known services have, and the values that
// the caller's own environment holds under such names. What has none of these cannot be found, so whoever sends the
// text reads it first.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace faultline::record {

struct RedactionOptions {
  std::vector<std::string> values = {};           // secrets as they are, of at least kShortestValue characters
  std::map<std::string, std::string> names = {};  // words and paths to hide, and what stands in their place
};

inline constexpr size_t kShortestValue = 8;

// What the caller's environment holds under names that speak of secrets.
std::vector<std::string> secrets_of_environment();
// Home folder, user and machine, by the words "~", "(user)" and "(machine)".
std::map<std::string, std::string> names_of_caller();

class Redactor {
 public:
  explicit Redactor(RedactionOptions options);

  std::string text(std::string_view given);  // a byte sequence; UTF-8 stays UTF-8
  Json json(const Json& given);              // its strings, with the names of their fields in mind

  // Replaced so far, by what was found: "variable", "header", "url", "token", "private key", "value", "name".
  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  std::string replaced(std::string&& text, std::string_view kind, std::string_view word, std::string_view by,
                       bool whole_words);
  RedactionOptions options_;
  std::map<std::string, int64_t> counts_;
};

// Does this name say that its value is a secret? HF_TOKEN, api_key, accessToken; not max_new_tokens, eos_token, key.
bool text_names_a_secret(std::string_view name);

}  // namespace faultline::record
