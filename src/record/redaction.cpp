#include "record/redaction.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "base/machine.h"
#include "record/environment.h"

namespace faultline::record {
namespace {

bool is_letter_or_digit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_space(char c) { return c == ' ' || c == '\t'; }
bool is_line_end(char c) { return c == '\n' || c == '\r'; }
bool is_quote(char c) { return c == '"' || c == '\''; }
char lower_of(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

bool starts_with_ignoring_case(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::equal(word.begin(), word.end(), text.begin(), [](char a, char b) { return a == lower_of(b); });
}

// What tokens of services begin with, and how many more characters make one. Short ones too: a log may have cut them.
struct TokenForm {
  std::string_view begin;
  size_t least;                 // characters after it
  std::string_view also = "_";  // that it may hold beside letters and digits
};
constexpr std::array kTokenForms = {
    TokenForm{"hf_", 16, ""},     TokenForm{"api_org_", 8},       TokenForm{"sk-", 16, "_-"},
    TokenForm{"sk_live_", 8},     TokenForm{"sk_test_", 8},       TokenForm{"rk_live_", 8},
    TokenForm{"ghp_", 12, ""},    TokenForm{"gho_", 12, ""},      TokenForm{"ghu_", 12, ""},
    TokenForm{"ghs_", 12, ""},    TokenForm{"ghr_", 12, ""},      TokenForm{"github_pat_", 8},
    TokenForm{"glpat-", 8, "_-"}, TokenForm{"xoxb-", 8, "-"},     TokenForm{"xoxp-", 8, "-"},
    TokenForm{"xoxa-", 8, "-"},   TokenForm{"xoxs-", 8, "-"},     TokenForm{"xoxr-", 8, "-"},
    TokenForm{"nvapi-", 8, "_-"}, TokenForm{"npm_", 16},          TokenForm{"pypi-", 16, "_-"},
    TokenForm{"AKIA", 12, ""},    TokenForm{"ASIA", 12, ""},      TokenForm{"AIza", 20, "_-"},
    TokenForm{"eyJ", 24, "_-."},  TokenForm{"dckr_pat_", 8, "_-"}};

constexpr std::array<std::string_view, 6> kHeaders = {"authorization", "proxy-authorization", "cookie",
                                                      "set-cookie",    "x-api-key",           "x-auth-token"};
constexpr std::array<std::string_view, 11> kSecretWords = {"token",       "secret",     "password", "passwd",
                                                           "pwd",         "passphrase", "apikey",   "credential",
                                                           "credentials", "signature",  "sig"};
constexpr std::array<std::string_view, 10> kBeforeKey = {"api",  "access",     "private", "secret", "account",
                                                         "auth", "encryption", "signing", "ssh",    "shared"};
// Before "token" they make it a piece of text.
constexpr std::array<std::string_view, 17> kTokensOfText = {"eos", "bos",  "pad",     "unk",   "mask", "sep",
                                                            "cls", "next", "stop",    "image", "last", "first",
                                                            "per", "new",  "special", "prev",  "each"};

template <class List>
bool holds(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// "accessToken", "ACCESS_TOKEN", "access-token" -> access, token
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (size_t i = 0; i < name.size(); ++i) {
    const auto is_lower = [&](size_t at) { return std::islower(static_cast<unsigned char>(name[at])) != 0; };
    const bool new_hump = i > 0 && std::isupper(static_cast<unsigned char>(name[i])) != 0 && is_lower(i - 1);
    if ((!is_letter_or_digit(name[i]) || new_hump) && !words.back().empty()) words.emplace_back();
    if (is_letter_or_digit(name[i])) words.back() += lower_of(name[i]);
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// A count, a switch, or nothing at all: no secret whatever its name is.
bool says_nothing(std::string_view value) {
  constexpr size_t kLongestNumber = 7;
  const bool number = value.size() <= kLongestNumber && std::all_of(value.begin(), value.end(), [](char c) {
                        return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-';
                      });
  std::string word(value);
  std::transform(word.begin(), word.end(), word.begin(), lower_of);
  return number || word == "true" || word == "false" || word == "null" || word == "none" || word == kRedacted ||
         word == "redacted" || std::all_of(value.begin(), value.end(), [](char c) { return c == '*'; });
}

struct Span {
  size_t begin = 0, end = 0;
};

// The value behind `at`: in quotes, or up to what ends a word; `whole_line`: up to the line's end or a quote.
Span value_at(std::string_view text, size_t at, bool whole_line) {
  if (at < text.size() && is_quote(text[at])) {
    const char quote = text[at];
    size_t end = at + 1;
    while (end < text.size() && text[end] != quote && !is_line_end(text[end])) end += text[end] == '\\' ? 2 : 1;
    return {at + 1, std::min(end, text.size())};
  }
  const auto ends = [&](size_t i) {
    const bool escape = text[i] == '\\' && i + 1 < text.size() &&
                        std::string_view("nrt\"'").find(text[i + 1]) != std::string_view::npos;
    return is_line_end(text[i]) || is_quote(text[i]) || escape ||
           (!whole_line && (is_space(text[i]) || std::string_view(",;&)}]").find(text[i]) != std::string_view::npos));
  };
  size_t end = at;
  while (end < text.size() && !ends(end)) ++end;
  return {at, end};
}

bool has_no_small_letter(std::string_view name) {
  return std::none_of(name.begin(), name.end(),
                      [](char c) { return std::islower(static_cast<unsigned char>(c)) != 0; });
}

bool is_name_character(char c) { return is_letter_or_digit(c) || c == '_' || c == '-' || c == '.'; }

// `NAME=value`, `"name": "value"`, `name: value`, `--name value`. -> where the value stands; empty: nothing to hide
Span assigned_secret(std::string_view text, size_t begin, size_t end, bool& header) {
  const std::string_view name = text.substr(begin, end - begin);
  const size_t dashes = name.find_first_not_of('-');
  if (dashes == std::string_view::npos) return {};
  const std::string_view word = name.substr(dashes);
  header = std::any_of(kHeaders.begin(), kHeaders.end(), [&](std::string_view one) {
    return word.size() == one.size() && starts_with_ignoring_case(word, one);
  });
  if (!header && !text_names_a_secret(word)) return {};
  size_t at = end;
  const auto skip_quote = [&] {  // also of a dictionary within a string, and of a page
    constexpr std::string_view kOnPages = "&quot;";
    if (text.substr(at).starts_with(kOnPages))
      at += kOnPages.size();
    else if (at < text.size() && is_quote(text[at]))
      ++at;
    else if (at + 1 < text.size() && text[at] == '\\' && is_quote(text[at + 1]))
      at += 2;
  };
  skip_quote();
  while (at < text.size() && is_space(text[at])) ++at;
  const bool option = dashes >= 2 && at > end && at < text.size() && text[at] != '-' && text[at] != '=';
  if (!option) {
    if (at >= text.size() || (text[at] != '=' && text[at] != ':')) return {};
    ++at;
    while (at < text.size() && is_space(text[at])) ++at;
    if (at < text.size() && !is_quote(text[at])) skip_quote();
  }
  // NAME=… at the beginning of a line, as `env` prints it: the value is the rest.
  const bool listed = (begin == 0 || is_line_end(text[begin - 1])) && end < text.size() && text[end] == '=' &&
                      has_no_small_letter(word);
  Span value = value_at(text, at, header || listed);
  if (value.end > value.begin && text[value.end - 1] == '\\') --value.end;
  if (text.substr(value.begin).starts_with(kRedacted)) return {};
  return says_nothing(text.substr(value.begin, value.end - value.begin)) ? Span{} : value;
}

// Does a word begin here? Also behind an escape of JSON (\n) and behind one of a terminal (ESC [ 31 m).
bool begins_word(std::string_view text, size_t at, bool (*belongs)(char)) {
  if (at == 0 || !belongs(text[at - 1])) return true;
  const char before = text[at - 1];
  if (at > 1 && text[at - 2] == '\\' && (before == 'n' || before == 'r' || before == 't')) return true;
  if (before != 'm') return false;
  size_t start = at - 1;
  while (start > 0 && (std::isdigit(static_cast<unsigned char>(text[start - 1])) != 0 || text[start - 1] == ';'))
    --start;
  return start > 1 && text[start - 1] == '[' && (text[start - 2] == '\x1b' || text[start - 2] == 'b');
}

// -> its end; `at` where none begins there
size_t token_at(std::string_view text, size_t at) {
  if (!begins_word(text, at, is_letter_or_digit)) return at;
  for (const TokenForm& form : kTokenForms) {
    if (!text.substr(at).starts_with(form.begin)) continue;
    size_t end = at + form.begin.size();
    while (end < text.size() && (is_letter_or_digit(text[end]) || form.also.find(text[end]) != std::string_view::npos))
      ++end;
    if (end - at - form.begin.size() >= form.least) return end;
  }
  for (const std::string_view scheme : {std::string_view("bearer "), std::string_view("basic ")}) {
    if (!starts_with_ignoring_case(text.substr(at), scheme)) continue;
    size_t end = at + scheme.size();
    while (end < text.size() &&
           (is_letter_or_digit(text[end]) || std::string_view("._~+/=-").find(text[end]) != std::string_view::npos))
      ++end;
    const std::string_view word = text.substr(at + scheme.size(), end - at - scheme.size());
    const bool mixed =
        std::any_of(word.begin(), word.end(), [](char c) { return std::isalpha(static_cast<unsigned char>(c)) == 0; });
    if (word.size() >= 16 || (word.size() >= kShortestValue && mixed)) return end;
  }
  return at;
}

// Behind "://": a user with a password. -> the span before '@'
Span password_at(std::string_view text, size_t at) {
  constexpr std::string_view kMark = "://";
  if (!text.substr(at).starts_with(kMark)) return {};
  const size_t begin = at + kMark.size();
  size_t end = begin, sign = std::string_view::npos;
  for (;
       end < text.size() && !is_space(text[end]) && !is_line_end(text[end]) && !is_quote(text[end]) && text[end] != '/';
       ++end)
    if (text[end] == '@') sign = end;
  if (sign == std::string_view::npos) return {};
  const std::string_view user = text.substr(begin, sign - begin);
  return user.find(':') == std::string_view::npos ? Span{} : Span{begin, sign};
}

// From BEGIN to END, or to the side on which the other mark was cut off.
std::string without_private_keys(std::string_view text, int64_t& count) {
  constexpr std::string_view kEnd = "PRIVATE KEY-----";
  std::string result;
  bool within = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const size_t mark = line.find("-----BEGIN ");
    const bool begins = mark != std::string_view::npos && line.find(kEnd, mark) != std::string_view::npos;
    const size_t last = line.find("-----END ");
    const bool finishes = last != std::string_view::npos && line.find(kEnd, last) != std::string_view::npos;
    if (begins || finishes) {
      if (finishes && !within && !begins) result.clear();  // it began before this text
      if (begins || !within)
        result += std::string(begins ? line.substr(0, mark) : std::string_view()) + kRedacted, ++count;
      within = begins && !finishes;
      if (finishes) result += line.substr(std::min(line.size(), line.find(kEnd, last) + kEnd.size()));
      if (!within && end < text.size()) result += '\n';
    } else if (!within) {
      result += line;
      if (end < text.size()) result += '\n';
    }
    at = end + 1;
  }
  return result;
}

}  // namespace

bool text_names_a_secret(std::string_view name) {
  const bool capitals = has_no_small_letter(name);
  const std::vector<std::string> words = words_of(name);
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string before = i > 0 ? words[i - 1] : "";
    if (words[i] == "token" && holds(kTokensOfText, before)) continue;
    if (holds(kSecretWords, words[i])) return true;
    if (words[i] == "key" && holds(kBeforeKey, before)) return true;
  }
  return capitals && words.size() > 1 && words.back() == "key" && names_a_secret(name);
}

std::vector<std::string> secrets_of_environment() {
  std::vector<std::string> values;
  for (const auto& [name, value] : whole_environment())
    if (names_a_secret(name) && value.size() >= kShortestValue && !says_nothing(value)) values.push_back(value);
  return values;
}

std::map<std::string, std::string> names_of_caller() {
  std::map<std::string, std::string> names;
  for (const auto& [variable, word] :
       {std::pair("HOME", "~"), std::pair("USER", "(user)"), std::pair("LOGNAME", "(user)")})
    if (const char* value = std::getenv(variable); value != nullptr && std::string_view(value).size() >= 3)
      names[value] = word;
  if (const std::string machine = host_name(); machine.size() >= 3) names[machine] = "(machine)";
  return names;
}

Redactor::Redactor(RedactionOptions options) : options_(std::move(options)) {
  std::sort(options_.values.begin(), options_.values.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
}

std::string Redactor::replaced(std::string&& text, std::string_view kind, std::string_view word, std::string_view by,
                               bool whole_words) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
    const size_t end = at + word.size();
    const bool within = (at > 0 && is_letter_or_digit(text[at - 1]) && is_letter_or_digit(word.front())) ||
                        (end < text.size() && is_letter_or_digit(text[end]));
    if (whole_words && within) {
      at = end;
      continue;
    }
    text.replace(at, word.size(), by);
    at += by.size();
    ++counts_[std::string(kind)];
  }
  return std::move(text);
}

std::string Redactor::text(std::string_view given) {
  int64_t keys = 0;
  std::string source = without_private_keys(given, keys);
  if (keys > 0) counts_["private key"] += keys;
  for (const std::string& value : options_.values)
    source = replaced(std::move(source), "value", value, kRedacted, false);
  std::string result;
  const std::string_view text = source;
  const auto hide = [&](const Span& span, std::string_view from, std::string_view kind, size_t& at) {
    result += from;
    result += kRedacted;
    ++counts_[std::string(kind)];
    at = span.end;
  };
  for (size_t at = 0; at < text.size();) {
    if (const Span user = password_at(text, at); user.end > user.begin) {
      hide(user, text.substr(at, user.begin - at), "url", at);
      continue;
    }
    if (const size_t end = token_at(text, at); end > at) {
      hide({at, end}, "", "token", at);
      continue;
    }
    if (is_name_character(text[at]) && begins_word(text, at, is_name_character)) {
      size_t end = at;
      while (end < text.size() && is_name_character(text[end])) ++end;
      bool header = false;
      if (const Span value = assigned_secret(text, at, end, header); value.end > value.begin) {
        hide(value, text.substr(at, value.begin - at), header ? "header" : "variable", at);
        continue;
      }
    }
    result += text[at++];
  }
  for (const auto& [name, word] : options_.names) result = replaced(std::move(result), "name", name, word, true);
  return result;
}

Json Redactor::json(const Json& given) {
  if (given.is_string()) return text(given.get_ref<const std::string&>());
  if (given.is_array()) {
    Json list = Json::array();
    bool within_key = false;  // a private key may be a list of its lines
    for (const Json& one : given) {
      const std::string line = one.is_string() ? one.get<std::string>() : "";
      const bool mark = line.find("PRIVATE KEY-----") != std::string::npos;
      list.push_back(within_key && one.is_string() ? Json(kRedacted) : json(one));
      if (mark)
        within_key = line.rfind("-----BEGIN ") != std::string::npos && line.find("-----END ") == std::string::npos;
    }
    return list;
  }
  if (!given.is_object()) return given;
  Json object = Json::object();
  for (const auto& [name, value] : given.items()) {
    const bool secret =
        value.is_string() && text_names_a_secret(name) && !says_nothing(value.get_ref<const std::string&>());
    if (secret) ++counts_["variable"];
    object[name] = secret ? Json(kRedacted) : json(value);
  }
  return object;
}

}  // namespace faultline::record
