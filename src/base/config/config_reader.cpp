#include "base/config/config_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace faultline {
namespace {

// Length of the well-formed UTF-8 sequence at `at`, 0 if there is none; the code point goes to `point`.
// Well-formed as in table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.
std::size_t decode_utf8(std::string_view text, std::size_t at, char32_t& point) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) {
    point = lead;
    return 1;
  }
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - at < length) return 0;
  point = lead & (0xFF >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
    point = point << 6 | (byte(at + i) & 0x3F);
  }
  const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
  return overlong || (point >= 0xD800 && point <= 0xDFFF) || point > 0x10FFFF ? 0 : length;
}

// YAML 1.2, production c-printable. The rest is refused: control characters in a recipe are a mistake.
bool is_printable(char32_t point) {
  if (point < 0x20) return point == '\t' || point == '\n' || point == '\r';
  if (point >= 0x7F && point < 0xA0) return point == 0x85;
  return point != 0xFFFE && point != 0xFFFF;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  char32_t point = 0;
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    length = decode_utf8(text, at, point);
    if (length == 0) return false;
  }
  return true;
}

TextPlace place_of_offset(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? before.size() : before.size() - newline - 1;
  return {static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1, static_cast<int>(column) + 1};
}

std::string prepare_source(std::string_view text) {
  if (text.size() > kMaxConfigBytes) {
    throw ReadFailure({}, fmt::format("the file has {} bytes, more than the {} allowed", text.size(), kMaxConfigBytes));
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::string source;
  source.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    char32_t point = 0;
    const std::size_t length = decode_utf8(text, at, point);
    if (length == 0) {
      const int byte = static_cast<unsigned char>(text[at]);
      throw ReadFailure(place_of_offset(source, source.size()),
                        fmt::format("the byte 0x{:02x} is not valid UTF-8; save the file as UTF-8", byte));
    }
    if (!is_printable(point)) {
      throw ReadFailure(place_of_offset(source, source.size()),
                        fmt::format("the control character U+{:04X} is not allowed; is this a text file?",
                                    static_cast<std::uint32_t>(point)));
    }
    if (point == '\r') {
      source += '\n';
      at += text.substr(at).starts_with("\r\n") ? 2 : 1;
    } else {
      source += text.substr(at, length);
      at += length;
    }
  }
  return source;
}

const Node& TreeBuilder::innermost() const {
  FL_ASSERT(!open_.empty());
  return open_.back().node;
}

TextPlace TreeBuilder::pending_key_place() const {
  FL_ASSERT(!open_.empty() && open_.back().pending);
  const Position& position = open_.back().pending->key_position;
  return {position.line, position.column};
}

void TreeBuilder::begin_list(TextPlace place) { open(Node::list(), place); }
void TreeBuilder::begin_map(TextPlace place) { open(Node::map(), place); }

void TreeBuilder::open(Node node, TextPlace place) {
  count(node, place, open_.size() + 1);
  node.set_position(position(place));
  open_.push_back({std::move(node), std::nullopt, {}});
}

void TreeBuilder::end() {
  FL_ASSERT(!open_.empty() && !open_.back().pending);
  Node closed = std::move(open_.back().node);
  open_.pop_back();
  place_value(std::move(closed));
}

void TreeBuilder::key(std::string key, TextPlace place) {
  FL_ASSERT(wants_key());
  if (key.empty()) throw ReadFailure(place, "a key must not be empty");
  if (key.size() > kMaxKeyBytes) {
    throw ReadFailure(place, fmt::format("a key has {} bytes, more than the {} allowed", key.size(), kMaxKeyBytes));
  }
  count_text(key, place);
  Open& map = open_.back();
  if (!map.keys.insert(key).second) {
    throw ReadFailure(place, fmt::format("the key {} is given twice in the same map, first on line {}",
                                         describe_text(key), map.node.key_position(key).line));
  }
  map.pending = Node::Entry{std::move(key), Node(), position(place)};
}

void TreeBuilder::scalar(Node value, TextPlace place) {
  count(value, place, open_.size());
  value.set_position(position(place));
  place_value(std::move(value));
}

void TreeBuilder::subtree(Node copy, TextPlace place) {
  count(copy, place, open_.size() + (copy.is_list() || copy.is_map()));
  copy.set_position(position(place));
  place_value(std::move(copy));
}

void TreeBuilder::charge(const Node& copy, TextPlace place) { count(copy, place, 0); }

void TreeBuilder::place_value(Node value) {
  if (open_.empty()) {
    FL_ASSERT(!root_);
    root_ = std::move(value);
  } else if (open_.back().node.is_list()) {
    open_.back().node.push_back(std::move(value));
  } else {
    FL_ASSERT(open_.back().pending);
    open_.back().pending->value = std::move(value);
    open_.back().node.entries().push_back(*std::exchange(open_.back().pending, std::nullopt));
  }
}

void TreeBuilder::count(const Node& node, TextPlace place, std::size_t depth) {
  if (++nodes_ > kMaxConfigNodes) {
    throw ReadFailure(place,
                      fmt::format("more than {} values (aliases count as often as they are used)", kMaxConfigNodes));
  }
  if (depth > kMaxConfigDepth) throw ReadFailure(place, fmt::format("nested more than {} deep", kMaxConfigDepth));
  if (node.is_string()) count_text(node.as_string(), place);
  if (node.is_list()) {
    for (const Node& item : node.items()) count(item, place, depth + (item.is_list() || item.is_map()));
  }
  if (node.is_map()) {
    for (const Node::Entry& entry : node.entries()) {
      count_text(entry.key, place);
      count(entry.value, place, depth + (entry.value.is_list() || entry.value.is_map()));
    }
  }
}

void TreeBuilder::count_text(std::string_view text, TextPlace place) {
  text_ += text.size();
  if (text_ > kMaxConfigText) throw ReadFailure(place, fmt::format("more than {} bytes of text", kMaxConfigText));
  if (text.find('\0') != std::string_view::npos) throw ReadFailure(place, "a string must not contain a NUL character");
  if (!is_valid_utf8(text)) throw ReadFailure(place, "an escape makes the string invalid UTF-8");
}

Node TreeBuilder::take() {
  FL_ASSERT(open_.empty() && root_);
  return std::move(*root_);
}

}  // namespace faultline
