#include "base/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/config/config_reader.h"
#include "base/files/file.h"
#include "base/json.h"

namespace faultline {
namespace {

constexpr std::size_t kMaxQuotedBytes = 60;
constexpr std::size_t kMaxPathBytes = 240;

void build_from_json(TreeBuilder& builder, const Json& json) {
  using Type = Json::value_t;
  switch (json.type()) {
    case Type::null: return builder.scalar(Node(), {});
    case Type::boolean: return builder.scalar(json.get<bool>(), {});
    case Type::number_integer: return builder.scalar(json.get<std::int64_t>(), {});
    case Type::number_unsigned:
      if (!std::in_range<std::int64_t>(json.get<std::uint64_t>())) {
        throw ReadFailure({}, fmt::format("the integer {} does not fit in 64 bits", json.get<std::uint64_t>()));
      }
      return builder.scalar(json.get<std::int64_t>(), {});
    case Type::number_float: return builder.scalar(json.get<double>(), {});
    case Type::string: return builder.scalar(json.get<std::string>(), {});
    case Type::array:
      builder.begin_list({});
      for (const Json& item : json) build_from_json(builder, item);
      return builder.end();
    case Type::object:
      builder.begin_map({});
      for (const auto& [key, value] : json.items()) {
        builder.key(key, {});
        build_from_json(builder, value);
      }
      return builder.end();
    default: throw ReadFailure({}, "binary and discarded JSON values are not supported");
  }
}

UsageError failure_in(const std::string& file, const ReadFailure& failure) {
  const TextPlace place = failure.place();
  return UsageError(fmt::format("{}:{}:{}: {}", file, place.line, place.column, failure.what()));
}

std::string capped_path(std::string path) {
  if (path.size() <= kMaxPathBytes) return path;
  std::size_t cut = path.size() - kMaxPathBytes;
  while (cut < path.size() && (static_cast<unsigned char>(path[cut]) & 0xC0) == 0x80) ++cut;
  return "…" + path.substr(cut);
}

}  // namespace

std::string Position::text() const {
  if (!file) return line > 0 ? fmt::format("line {}", line) : "";
  return line > 0 ? fmt::format("{}:{}", *file, line) : *file;
}

Node parse_yaml(std::string_view text, const std::string& file) {
  try {
    return read_yaml(text, std::make_shared<const std::string>(file));
  } catch (const ReadFailure& failure) {
    throw failure_in(file, failure);
  }
}

Node parse_json(std::string_view text, const std::string& file) {
  try {
    return read_json(text, std::make_shared<const std::string>(file));
  } catch (const ReadFailure& failure) {
    throw failure_in(file, failure);
  }
}

Node load_config(const std::filesystem::path& path) {
  const std::string text = read_given_file(path, kMaxConfigBytes);
  return path.extension() == ".json" ? parse_json(text, path.string()) : parse_yaml(text, path.string());
}

Node from_json(const Json& json, const std::string& file) {
  TreeBuilder builder(nullptr);
  try {
    build_from_json(builder, json);
  } catch (const ReadFailure& failure) {
    throw UsageError(file.empty() ? failure.what() : fmt::format("{}: {}", file, failure.what()));
  }
  Node node = builder.take();
  node.set_position_everywhere({file.empty() ? nullptr : std::make_shared<const std::string>(file), 0, 0});
  return node;
}

Json to_json(const Node& node) {
  switch (node.kind()) {
    case NodeKind::kNull: return nullptr;
    case NodeKind::kBoolean: return node.as_bool();
    case NodeKind::kInteger: return node.as_integer();
    case NodeKind::kNumber:
      if (!std::isfinite(node.as_number())) {
        throw node.error(fmt::format("JSON has no way to write {}", node.as_number()));
      }
      return node.as_number();
    case NodeKind::kString: return node.as_string();
    case NodeKind::kList: {
      Json array = Json::array();
      for (const Node& item : node.items()) array.push_back(to_json(item));
      return array;
    }
    case NodeKind::kMap: {
      Json object = Json::object();
      for (const Node::Entry& entry : node.entries()) {
        object.emplace(entry.key, to_json(entry.value));
      }
      return object;
    }
  }
  FL_ASSERT(false);
  return nullptr;
}

std::string describe_text(std::string_view text) {
  std::size_t end = std::min(text.size(), kMaxQuotedBytes);
  const std::size_t longest = end;
  while (end < text.size() && end + 3 > longest && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  const bool is_utf8 = is_valid_utf8(text.substr(0, end));
  std::string quoted = "'";
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_shown = byte < 0x80 ? byte >= 0x20 && byte != 0x7F : is_utf8;
    quoted += is_shown ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return quoted + (end < text.size() ? "…'" : "'");
}

std::string describe(const Node& node) {
  switch (node.kind()) {
    case NodeKind::kNull: return "nothing (null)";
    case NodeKind::kBoolean: return node.as_bool() ? "true" : "false";
    case NodeKind::kInteger: return fmt::format("{}", node.as_integer());
    case NodeKind::kNumber: return fmt::format("{}", node.as_number());
    case NodeKind::kString: return "the string " + describe_text(node.as_string());
    case NodeKind::kList: return fmt::format("a list of {}", node.size());
    case NodeKind::kMap: return node.size() == 0 ? "an empty map" : "a map";
  }
  FL_ASSERT(false);
  return "";
}

std::string child_path(const std::string& parent, std::string_view key) {
  const bool plain = std::all_of(key.begin(), key.end(),
                                 [](unsigned char c) { return c >= 0x80 || std::isalnum(c) || c == '_' || c == '-'; });
  if (plain && key.size() <= kMaxQuotedBytes) {
    return capped_path(parent.empty() ? std::string(key) : fmt::format("{}.{}", parent, key));
  }
  return capped_path(fmt::format("{}[{}]", parent, describe_text(key)));
}

std::string child_path(const std::string& parent, std::size_t index) {
  return capped_path(fmt::format("{}[{}]", parent, index));
}

}  // namespace faultline
