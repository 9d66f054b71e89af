#include "triage/output_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <set>

#include "base/text.h"

namespace faultline::triage {
namespace {

constexpr size_t kMaxRegex = 1000;  // characters
constexpr size_t kMaxShown = 200;   // of a line in a sentence

// Python writes a named group (?P<name>…); std::regex has groups without names alone.
struct Compiled {
  std::regex regex;
  std::map<size_t, std::string> names;  // of groups, by number
};

Compiled compiled(const std::string& text) {
  Compiled result;
  std::string plain;
  size_t groups = 0;
  bool in_class = false;
  for (size_t i = 0; i < text.size(); ++i) {
    plain += text[i];
    if (text[i] == '\\' && i + 1 < text.size()) {
      plain += text[++i];
    } else if (text[i] == '[') {
      in_class = true;
    } else if (text[i] == ']') {
      in_class = false;
    } else if (text[i] == '(' && !in_class) {
      const bool named = text.compare(i + 1, 3, "?P<") == 0;
      if (named || text.compare(i + 1, 1, "?") != 0) ++groups;
      if (!named) continue;
      const size_t end = text.find('>', i);
      if (end == std::string::npos) throw std::regex_error(std::regex_constants::error_paren);
      result.names[groups] = text.substr(i + 4, end - i - 4);
      i = end;
    }
  }
  result.regex.assign(plain, std::regex::ECMAScript | std::regex_constants::__polynomial);
  return result;
}

std::string check_regex(const Node& node) {
  if (node.as_string().size() > kMaxRegex) return fmt::format("an expression has at most {} characters", kMaxRegex);
  try {
    (void)compiled(node.as_string());
    return "";
  } catch (const std::regex_error& error) {
    return fmt::format(
        "{} is no expression that this program reads ({}); it has no back references, no look-behind "
        "and no (?i)",
        describe_text(node.as_string()), error.what());
  }
}

std::string check_pattern(const Node& pattern) {
  const bool fails = pattern.at("on_match").as_string() == "fail";
  return pattern.at("required_for_pass").as_bool() && !fails ? "required_for_pass needs on_match: fail" : "";
}

std::string check_ids(const Node& list) {
  std::set<std::string> seen;
  for (const Node& pattern : list.items()) {
    const Node* id = pattern.find("id");
    if (id != nullptr && id->is_string() && !seen.insert(id->as_string()).second)
      return fmt::format("two patterns are called '{}'", id->as_string());
  }
  return "";
}

std::string shown(const std::string& line) { return line.substr(0, kMaxShown); }

}  // namespace

Schema patterns_schema() {
  const Schema condition = Schema::anything().check([](const Node&) -> std::string {
    return "conditions are not evaluated here; write what decides into the expression, or let the command exit with "
           "another status";
  });
  const Schema match = Schema::map()
                           .field("regex", Schema::string({.min = 1}).check(check_regex), {.required = true})
                           .field("condition", condition, {.doc = "refused"});
  const Schema pattern =
      Schema::map()
          .field("id", Schema::string({.min = 1, .max = 80}), {.required = true})
          .field("match", match, {.required = true, .doc = "regex: tried on every line of stdout and stderr"})
          .field("on_match", Schema::choice({"fail", "warn", "info"}), {.default_value = Node("fail")})
          .field("required_for_pass", Schema::boolean(),
                 {.default_value = Node(false), .doc = "a trial without it is wrong"})
          .check(check_pattern);
  return Schema::list(pattern, {.max = 100}).check(check_ids);
}

std::vector<OutputPattern> read_patterns(const Node& node) {
  std::vector<OutputPattern> patterns;
  for (const Node& one : node.items()) {
    const std::string& on_match = one.at("on_match").as_string();
    patterns.push_back({one.at("id").as_string(), one.at("match").at("regex").as_string(),
                        on_match == "fail"   ? OnMatch::kFail
                        : on_match == "warn" ? OnMatch::kWarn
                                             : OnMatch::kInfo,
                        one.at("required_for_pass").as_bool()});
  }
  return patterns;
}

OutputScan scan(const std::vector<OutputPattern>& patterns, std::string_view text) {
  OutputScan found;
  for (const OutputPattern& pattern : patterns) {
    const Compiled expression = compiled(pattern.regex);
    bool matched = false;
    for (size_t begin = 0; begin < text.size() && !matched;) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line(text.substr(begin, end - begin));
      begin = end + 1;
      std::smatch groups;
      if (!std::regex_search(line, groups, expression.regex)) continue;
      matched = true;
      found.matches.push_back({pattern.id, line, pattern.on_match});
      for (const auto& [number, name] : expression.names)
        if (groups[number].matched) found.capture[name] = groups[number].str();
    }
    if (!matched && pattern.required) found.missing.push_back(pattern.id);
  }
  std::erase_if(found.matches, [&](const OutputMatch& match) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const OutputPattern& p) { return p.id == match.id && p.required; });
  });
  return found;
}

std::string OutputScan::wrong() const {
  for (const OutputMatch& match : matches)
    if (match.on_match == OnMatch::kFail) return fmt::format("pattern '{}' met: {}", match.id, shown(match.line));
  if (!missing.empty()) return fmt::format("pattern '{}', which is required, met no line", missing.front());
  return "";
}

}  // namespace faultline::triage
