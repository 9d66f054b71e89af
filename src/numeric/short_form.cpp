// The short form of a rule for the command line: `kind(key=value, …) @ key=value,…`. Inside the parentheses a bare key
// belongs to `what`, a dotted one to the rule (extent.fraction, lifetime.kind, rounding.… is written `rule.rounding`);
// after the @ stand the keys of `where`. Values are what an override's value is: a number, a word, a quoted string or
// a YAML flow value.
#include <fmt/format.h>

#include "base/config/override.h"
#include "numeric/rule.h"

namespace faultline::numeric {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view complaint) {
  throw UsageError(
      fmt::format("fault '{}': {}; write it as kind(parameter=value, …) @ operator=NAME,layer=15", text, complaint));
}

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// Splits at commas outside quotes and brackets.
std::vector<std::string_view> split_arguments(std::string_view text, std::string_view whole) {
  std::vector<std::string_view> parts;
  int depth = 0;
  char quote = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      if (--depth < 0) refuse(whole, "a bracket closes that was never opened");
    } else if (c == ',' && depth == 0) {
      parts.push_back(trim(text.substr(start, i - start)));
      start = i + 1;
    }
  }
  if (quote != 0 || depth != 0) refuse(whole, "a quote or bracket is not closed");
  if (!trim(text.substr(start)).empty()) parts.push_back(trim(text.substr(start)));
  return parts;
}

void set_argument(Node& rule, const std::string& section, std::string_view argument, std::string_view whole) {
  if (argument.find('=') == std::string_view::npos) refuse(whole, fmt::format("'{}' has no '='", argument));
  const std::string_view key = trim(argument.substr(0, argument.find('=')));
  if (key.empty()) refuse(whole, fmt::format("'{}' has no name before '='", argument));
  const bool dotted = key.find('.') != std::string_view::npos;
  std::string path(dotted ? key : std::string_view(section + "." + std::string(key)));
  if (path.starts_with("rule.")) path = path.substr(5);
  Override change = parse_override(fmt::format("{}={}", path, trim(argument.substr(argument.find('=') + 1))));
  if (change.path.size() > 2) refuse(whole, fmt::format("'{}' goes too deep", key));
  if (change.path.size() == 1) {
    if (rule.find(change.path[0])) refuse(whole, fmt::format("'{}' stands twice", key));
    rule.set(change.path[0], std::move(change.value));
    return;
  }
  if (!rule.find(change.path[0])) rule.set(change.path[0], Node::map());
  Node* map = rule.find(change.path[0]);
  if (!map->is_map() || map->find(change.path[1])) refuse(whole, fmt::format("'{}' stands twice", key));
  map->set(change.path[1], std::move(change.value));
}

}  // namespace

Node expand_short_form(std::string_view text) {
  if (text.size() > 4096) throw UsageError("a fault in short form may have at most 4,096 characters");
  const std::size_t at = text.find('@');
  const std::string_view fault = trim(text.substr(0, at));
  const std::size_t open = fault.find('(');
  const std::string_view kind = trim(fault.substr(0, open));
  if (kind.empty() || kind.find_first_of("= \t,)") != std::string_view::npos)
    refuse(text, "it must begin with the name of a fault kind");
  Node rule = Node::map(), what = Node::map();
  what.set("kind", Node(kind));
  rule.set("what", what);
  if (open != std::string_view::npos) {
    if (fault.back() != ')') refuse(text, "the parenthesis is not closed");
    for (const std::string_view argument : split_arguments(fault.substr(open + 1, fault.size() - open - 2), text))
      set_argument(rule, "what", argument, text);
  }
  if (at != std::string_view::npos) {
    rule.set("where", Node::map());
    for (const std::string_view argument : split_arguments(text.substr(at + 1), text))
      set_argument(rule, "where", argument, text);
  }
  static const auto command_line = std::make_shared<const std::string>("command line");
  rule.set_position_everywhere({command_line, 0, 0});
  return rule;
}

}  // namespace faultline::numeric
