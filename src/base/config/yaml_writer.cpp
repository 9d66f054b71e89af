// YAML out: block style, one key a line, lists of scalars in brackets; a string is quoted unless it cannot be mistaken
// for anything else. Written by hand because what is printed must parse back to the same tree, type and bit.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/config/config.h"

namespace faultline {
namespace {

constexpr std::size_t kIndent = 2;

bool is_plain(std::string_view text) {
  if (text.empty() || !(std::isalnum(static_cast<unsigned char>(text[0])) || text[0] == '_' || text[0] == '/'))
    return false;
  if (text.size() > 200) return false;
  const bool harmless = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-';
  });
  if (!harmless) return false;
  try {
    return resolve_plain_scalar(text).is_string();
  } catch (const UsageError&) {  // digits that fit no number
    return false;
  }
}

// Characters that YAML calls unprintable, or that some reader takes for a line break or a byte order mark.
std::string_view hidden_prefix(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  if (byte(0) == 0xC2 && byte(1) < 0xA0) return text.substr(0, 2);  // C1 controls
  if (byte(0) == 0xE2 && byte(1) == 0x80 && (byte(2) == 0xA8 || byte(2) == 0xA9)) return text.substr(0, 3);
  if (byte(0) == 0xEF && byte(1) == 0xBB && byte(2) == 0xBF) return text.substr(0, 3);
  if (byte(0) == 0xEF && byte(1) == 0xBF && byte(2) >= 0xBE) return text.substr(0, 3);  // U+FFFE, U+FFFF
  return {};
}

unsigned code_point(std::string_view utf8) {  // of two or three bytes
  unsigned point = static_cast<unsigned char>(utf8[0]) & (utf8.size() == 2 ? 0x1F : 0x0F);
  for (const char c : utf8.substr(1)) point = point << 6 | (static_cast<unsigned char>(c) & 0x3F);
  return point;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::string_view hidden = hidden_prefix(text);
    const auto c = static_cast<unsigned char>(text[0]);
    if (!hidden.empty()) {
      out += fmt::format("\\u{:04X}", code_point(hidden));
    } else if (c == '"' || c == '\\') {
      out += {'\\', text[0]};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02X}", c);
    } else {
      out += text[0];
    }
    text.remove_prefix(std::max<std::size_t>(hidden.size(), 1));
  }
  return out + "\"";
}

std::string number_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value < 0 ? "-.inf" : ".inf";
  std::string text = fmt::format("{}", value);  // shortest that reads back the same
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string string_text(std::string_view text) { return is_plain(text) ? std::string(text) : quoted(text); }

// Scalars, lists of such, and empty maps fit on a line.
bool is_inline(const Node& node) {
  if (node.is_map()) return node.size() == 0;
  return !node.is_list() || std::all_of(node.items().begin(), node.items().end(), is_inline);
}

std::string inline_text(const Node& node) {
  switch (node.kind()) {
    case NodeKind::kNull: return "null";
    case NodeKind::kBoolean: return node.as_bool() ? "true" : "false";
    case NodeKind::kInteger: return fmt::format("{}", node.as_integer());
    case NodeKind::kNumber: return number_text(node.as_number());
    case NodeKind::kString: return string_text(node.as_string());
    case NodeKind::kMap: return "{}";
    case NodeKind::kList: break;
  }
  std::string out = "[";
  for (const Node& item : node.items()) out += (out.size() > 1 ? ", " : "") + inline_text(item);
  return out + "]";
}

void write_block(const Node& node, std::size_t indent, bool first_is_indented, std::string& out);

void write_after(const Node& value, std::size_t indent, std::string& out) {  // after "key:"
  if (is_inline(value)) {
    out += ' ' + inline_text(value) + '\n';
  } else {
    out += '\n';
    write_block(value, indent + kIndent, false, out);
  }
}

void write_block(const Node& node, std::size_t indent, bool first_is_indented, std::string& out) {
  const auto start_line = [&] {
    if (!first_is_indented) out.append(indent, ' ');
    first_is_indented = false;
  };
  if (node.is_map()) {
    for (const Node::Entry& entry : node.entries()) {
      start_line();
      out += string_text(entry.key) + ':';
      write_after(entry.value, indent, out);
    }
    return;
  }
  for (const Node& item : node.items()) {
    start_line();
    out += '-';
    if (item.is_map() && !is_inline(item)) {  // its first key goes on the line of the dash
      out += ' ';
      write_block(item, indent + kIndent, true, out);
    } else {
      write_after(item, indent, out);
    }
  }
}

}  // namespace

std::string to_yaml(const Node& node) {
  std::string out;
  if (is_inline(node)) {
    out = inline_text(node) + '\n';
  } else {
    write_block(node, 0, false, out);
  }
  return out;
}

}  // namespace faultline
