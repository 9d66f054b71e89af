// Reads the text of one override (override.h) into action, path and value.
#include <fmt/format.h>

#include <algorithm>

#include "base/config/config_reader.h"
#include "base/config/override.h"

namespace faultline {
namespace {

// The segment that starts at `at`: name, [3] or ['x.y']. Leaves `at` behind it.
std::string take_segment(std::string_view text, std::string_view path, std::size_t& at) {
  if (path[at] != '[') {
    const std::size_t end = std::min(path.find_first_of(".[", at), path.size());
    std::string name(path.substr(at, end - at));
    at = end;
    return name;
  }
  const char quote = at + 1 < path.size() ? path[at + 1] : '\0';
  const bool quoted = quote == '\'' || quote == '"';
  const std::size_t start = at + (quoted ? 2 : 1);
  const std::size_t end = quoted ? path.find(std::string{quote, ']'}, start) : path.find(']', start);
  if (end == std::string_view::npos) throw override_error(text, "a '[' is not closed");
  at = end + (quoted ? 2 : 1);
  return std::string(path.substr(start, end - start));
}

std::vector<std::string> split_path(std::string_view text, std::string_view path) {
  std::vector<std::string> segments;
  for (std::size_t at = 0; at < path.size() || segments.empty();) {
    if (!segments.empty() && path[at] == '.') ++at;
    if (at >= path.size() || path[at] == '.')
      throw override_error(text, "the path has an empty part; write it like a.b[0].c=value");
    std::string segment = take_segment(text, path, at);
    if (segment.empty()) throw override_error(text, "the path has an empty part; write it like a.b[0].c=value");
    if (segment.size() > kMaxKeyBytes)
      throw override_error(text, fmt::format("a key has more than {} bytes", kMaxKeyBytes));
    if (at < path.size() && path[at] != '.' && path[at] != '[')
      throw override_error(text, "after ']' a '.' or '[' must follow");
    segments.push_back(std::move(segment));
  }
  if (segments.size() >= kMaxConfigDepth)
    throw override_error(text, fmt::format("the path has more than {} parts", kMaxConfigDepth - 1));
  return segments;
}

// The '=' that ends the path: not one inside ['a=b'].
std::size_t find_equals(std::string_view text) {
  char quote = '\0';
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (quote != '\0') {
      if (text[at] == quote && text.substr(at + 1).starts_with(']')) quote = '\0';
    } else if (text[at] == '=') {
      return at;
    } else if (text[at] == '[' && at + 1 < text.size() && (text[at + 1] == '\'' || text[at + 1] == '"')) {
      quote = text[++at];
    }
  }
  return std::string_view::npos;
}

std::size_t depth_of(const Node& node) {
  std::size_t below = 0;
  if (node.is_list()) {
    for (const Node& item : node.items()) below = std::max(below, depth_of(item));
  }
  if (node.is_map()) {
    for (const Node::Entry& entry : node.entries()) below = std::max(below, depth_of(entry.value));
  }
  return below + (node.is_list() || node.is_map());
}

Node parse_value(std::string_view text, std::string_view value) {
  const std::size_t first = value.find_first_not_of(" \t");
  if (first == std::string_view::npos)
    throw override_error(text, "the value is missing; write '' for an empty string, null for nothing");
  value = value.substr(first, value.find_last_not_of(" \t") - first + 1);
  Node node;
  try {
    const bool flow = std::string_view("[{'\"").find(value[0]) != std::string_view::npos;
    node = flow ? read_yaml(value, nullptr) : resolve_plain_scalar(value);
  } catch (const ReadFailure& failure) {
    throw override_error(text, failure.what());
  } catch (const UsageError& error) {
    throw override_error(text, error.what());
  }
  const bool whole = value[0] == '['   ? node.is_list()
                     : value[0] == '{' ? node.is_map()
                                       : !node.is_list() && !node.is_map();
  if (!whole) throw override_error(text, "there is text after the value");
  node.set_position_everywhere(command_line_position());
  return node;
}

}  // namespace

const Position& command_line_position() {
  static const Position position{std::make_shared<const std::string>("command line"), 0, 0};
  return position;
}

UsageError override_error(std::string_view text, std::string_view complaint) {
  return UsageError(fmt::format("override {}: {}", describe_text(text), complaint));
}

Override parse_override(std::string_view text) {
  Override change;
  change.text = text;
  if (text.size() > kMaxConfigBytes) throw override_error(text, "it is too long");
  if (!is_valid_utf8(text) || text.find('\0') != std::string_view::npos)
    throw override_error(text, "it is not valid UTF-8 text");
  std::string_view rest = text;
  const auto take = [&rest](std::string_view prefix) {
    const bool there = rest.starts_with(prefix);
    if (there) rest.remove_prefix(prefix.size());
    return there;
  };
  if (take("++"))
    change.action = OverrideAction::kForce;
  else if (take("+"))
    change.action = OverrideAction::kAdd;
  else if (take("~"))
    change.action = OverrideAction::kRemove;
  const std::size_t equals = find_equals(rest);
  const bool has_value = equals != std::string_view::npos;
  if (change.action == OverrideAction::kRemove) {
    if (has_value) throw override_error(text, "removing takes no value; write ~a.b");
  } else {
    if (!has_value) throw override_error(text, "there is no '='; write a.b=value, +a.b=value or ~a.b");
    change.value = parse_value(text, rest.substr(equals + 1));
  }
  change.path = split_path(text, rest.substr(0, equals));
  if (change.path.size() + depth_of(change.value) > kMaxConfigDepth) {
    throw override_error(text, fmt::format("path and value nest more than {} deep", kMaxConfigDepth));
  }
  return change;
}

}  // namespace faultline
