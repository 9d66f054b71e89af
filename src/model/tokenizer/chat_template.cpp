// The canonical spelling of a Jinja template. White space follows the rules transformers render with: trim_blocks (a
// newline after a block's end belongs to it), lstrip_blocks (so does the indentation before a block) and the minus
// signs. Text between tags is printed text like any literal, so both become one expression.
#include <fmt/format.h>

#include <vector>

#include "model/tokenizer/chat.h"

namespace faultline::model {
namespace {

struct Lexeme {
  enum class Kind { kWord, kText, kSign } kind;
  std::string value;
};
using Lexemes = std::vector<Lexeme>;

constexpr std::string_view kBlank = " \t\r\n";

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

// A quoted literal at the front of `rest`, which it is taken from. False: it does not end.
bool take_literal(std::string_view& rest, std::string& value) {
  const char quote = rest[0];
  for (size_t at = 1; at < rest.size(); ++at) {
    if (rest[at] == quote) {
      rest.remove_prefix(at + 1);
      return true;
    }
    if (rest[at] != '\\' || at + 1 == rest.size()) {
      value += rest[at];
      continue;
    }
    const char escaped = rest[++at];
    value += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped == 'r' ? '\r' : escaped;
  }
  return false;
}

bool lex(std::string_view rest, Lexemes& out) {
  while (!rest.empty()) {
    if (kBlank.find(rest[0]) != std::string_view::npos) {
      rest.remove_prefix(1);
    } else if (rest[0] == '\'' || rest[0] == '"') {
      out.push_back({Lexeme::Kind::kText, ""});
      if (!take_literal(rest, out.back().value)) return false;
    } else if (is_word(rest[0])) {
      size_t length = 1;
      while (length < rest.size() && is_word(rest[length])) ++length;
      out.push_back({Lexeme::Kind::kWord, std::string(rest.substr(0, length))});
      rest.remove_prefix(length);
    } else {
      out.push_back({Lexeme::Kind::kSign, std::string(rest.substr(0, 1))});
      rest.remove_prefix(1);
    }
  }
  return true;
}

bool is_sign(const Lexeme& lexeme, std::string_view sign) {
  return lexeme.kind == Lexeme::Kind::kSign && lexeme.value == sign;
}

// a['b'] -> a.b; 'a' + 'b' -> 'ab'
Lexemes simplified(const Lexemes& lexemes) {
  Lexemes out;
  for (size_t i = 0; i < lexemes.size(); ++i) {
    const bool subscript = i + 2 < lexemes.size() && !out.empty() && !is_sign(out.back(), "(") &&
                           is_sign(lexemes[i], "[") && lexemes[i + 1].kind == Lexeme::Kind::kText &&
                           is_sign(lexemes[i + 2], "]");
    const bool joined = lexemes[i].kind == Lexeme::Kind::kText && out.size() > 1 && is_sign(out.back(), "+") &&
                        out[out.size() - 2].kind == Lexeme::Kind::kText;
    if (subscript) {
      out.push_back({Lexeme::Kind::kSign, "."});
      out.push_back({Lexeme::Kind::kWord, lexemes[i + 1].value});
      i += 2;
    } else if (joined) {
      out.pop_back();
      out.back().value += lexemes[i].value;
    } else {
      out.push_back(lexemes[i]);
    }
  }
  return out;
}

struct Part {
  bool is_block;  // {% %}; otherwise printed
  Lexemes lexemes;
};

void append_printed(std::vector<Part>& parts, Lexemes lexemes) {
  if (parts.empty() || parts.back().is_block) {
    parts.push_back({false, std::move(lexemes)});
    return;
  }
  parts.back().lexemes.push_back({Lexeme::Kind::kSign, "+"});
  for (Lexeme& lexeme : lexemes) parts.back().lexemes.push_back(std::move(lexeme));
}

// The text before a tag: without its white space if the tag begins with a minus, without the indentation if a block.
// `opens_line`: the text starts a line of the template.
std::string_view before_tag(std::string_view text, bool minus, bool is_block, bool opens_line) {
  if (minus) return text.substr(0, text.find_last_not_of(kBlank) + 1);
  const size_t indentation = text.find_last_not_of(" \t") + 1;
  const bool at_line_start = indentation == 0 ? opens_line : text[indentation - 1] == '\n';
  return is_block && at_line_start ? text.substr(0, indentation) : text;
}

bool read_parts(std::string_view rest, std::vector<Part>& parts) {
  bool opens_line = true;
  while (!rest.empty()) {
    size_t open = rest.find('{');
    while (open < rest.size() &&
           !(open + 1 < rest.size() && std::string_view("%{#").find(rest[open + 1]) != std::string_view::npos))
      open = rest.find('{', open + 1);
    const bool is_last = open >= rest.size();
    const char kind = is_last ? ' ' : rest[open + 1];
    const bool minus = !is_last && open + 2 < rest.size() && rest[open + 2] == '-';
    const std::string_view text = is_last ? rest : before_tag(rest.substr(0, open), minus, kind != '{', opens_line);
    if (!text.empty()) append_printed(parts, {{Lexeme::Kind::kText, std::string(text)}});
    if (is_last) return true;
    rest.remove_prefix(open + (minus ? 3 : 2));
    const size_t close = rest.find(kind == '{' ? "}}" : kind == '%' ? "%}" : "#}");
    if (close == std::string_view::npos) return false;
    const bool minus_after = close > 0 && rest[close - 1] == '-';
    Lexemes lexemes;
    if (kind != '#' && !lex(rest.substr(0, close - (minus_after ? 1 : 0)), lexemes)) return false;
    rest.remove_prefix(close + 2);
    if (minus_after) rest.remove_prefix(std::min(rest.find_first_not_of(kBlank), rest.size()));
    opens_line = !minus_after && kind != '{' && rest.starts_with('\n');
    if (opens_line) rest.remove_prefix(1);
    if (kind == '%')
      parts.push_back({true, std::move(lexemes)});
    else if (kind == '{')
      append_printed(parts, std::move(lexemes));
  }
  return true;
}

constexpr std::string_view kSystemOpening = "<|im_start|>system\n";

// The text of a literal that is a whole system turn, or nothing.
std::optional<std::string> system_message(const std::string& literal) {
  const std::string end = fmt::format("{}\n", kEndOfTurn);
  if (!literal.starts_with(kSystemOpening) || !literal.ends_with(end)) return std::nullopt;
  if (literal.size() <= kSystemOpening.size() + end.size()) return std::nullopt;
  return literal.substr(kSystemOpening.size(), literal.size() - kSystemOpening.size() - end.size());
}

// The message becomes "@", alone or in its turn.
void hide(std::string& literal, const std::string& message) {
  if (literal == message) {
    literal.assign(1, '@');
  } else if (system_message(literal) == message) {
    literal = fmt::format("{}@{}\n", kSystemOpening, kEndOfTurn);
  }
}

std::string spelled(const Lexeme& lexeme) {
  if (lexeme.kind != Lexeme::Kind::kText) return lexeme.value;
  std::string out = "\"";
  for (const char c : lexeme.value)
    out += c == '\n' ? "\\n" : c == '"' ? "\\\"" : c == '\\' ? "\\\\" : std::string(1, c);
  return out + '"';
}

}  // namespace

std::string canonical_template(std::string_view jinja, std::optional<std::string>& default_system) {
  std::vector<Part> parts;
  if (jinja.ends_with('\n')) jinja.remove_suffix(1);  // as Jinja does
  if (!read_parts(jinja, parts)) return "";
  for (Part& part : parts) {
    part.lexemes = simplified(part.lexemes);
    for (const Lexeme& lexeme : part.lexemes)
      if (lexeme.kind == Lexeme::Kind::kText && !default_system) default_system = system_message(lexeme.value);
  }
  std::string out;
  for (Part& part : parts) {
    out += part.is_block ? "{%" : "{{";
    for (size_t i = 0; i < part.lexemes.size(); ++i) {
      Lexeme& lexeme = part.lexemes[i];
      const bool is_text = lexeme.kind == Lexeme::Kind::kText;
      if (is_text && default_system) hide(lexeme.value, *default_system);
      if (i > 0 && lexeme.kind == Lexeme::Kind::kWord && part.lexemes[i - 1].kind == Lexeme::Kind::kWord) out += ' ';
      out += spelled(lexeme);
    }
    out += part.is_block ? "%}" : "}}";
  }
  return out;
}

}  // namespace faultline::model
