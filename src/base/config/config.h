// Configuration as a value tree. A Node is null, a boolean, an integer, a number, a string, a list or a map whose keys
// keep the order of the file, and every node knows where it was written, so that whoever finds a mistake in it later
// can still name the line. Recipes are a strict subset of YAML 1.2 (core schema: `no` and `on` are strings, 1e-5 is a
// number) or strict JSON; what other readers accept silently (duplicate keys, a second document, tags, merge keys) is
// refused here, because a key that is ignored is a fault that never fires.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace faultline {

// What a configuration may hold at most. The budgets count aliases as if they were written out.
inline constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;  // one file
inline constexpr std::size_t kMaxConfigNodes = 200'000;
inline constexpr std::size_t kMaxConfigText = std::size_t{16} << 20;  // bytes of all strings and keys
inline constexpr std::size_t kMaxConfigDepth = 64;
inline constexpr std::size_t kMaxKeyBytes = 200;  // YAML wants a key within 1,024 characters, escapes included

struct Position {
  std::shared_ptr<const std::string> file;  // shared by all nodes of the file; null: made by the program
  int line = 0;                             // from 1; 0: the whole file, or not a file ("command line")
  int column = 0;                           // from 1

  std::string text() const;  // "recipes/e5.yaml:7"
};

enum class NodeKind { kNull, kBoolean, kInteger, kNumber, kString, kList, kMap };  // the order of Node::Value

class Node {
 public:
  struct Entry;
  using List = std::vector<Node>;
  using Map = std::vector<Entry>;

  Node();  // null
  template <std::same_as<bool> Boolean>
  Node(Boolean value);
  template <std::integral Integer>
    requires(!std::same_as<Integer, bool>)
  Node(Integer value);
  Node(double value);
  Node(std::string value);
  Node(std::string_view value);
  Node(const char* value);
  Node(const Node&);
  Node(Node&&) noexcept;
  Node& operator=(const Node&);
  Node& operator=(Node&&) noexcept;
  ~Node();
  static Node list();
  static Node list(List items);
  static Node map();
  static Node map(Map entries);  // keys must differ

  NodeKind kind() const { return static_cast<NodeKind>(value_.index()); }
  bool is_null() const { return kind() == NodeKind::kNull; }
  bool is_boolean() const { return kind() == NodeKind::kBoolean; }
  bool is_integer() const { return kind() == NodeKind::kInteger; }
  bool is_number() const { return kind() == NodeKind::kNumber || is_integer(); }
  bool is_string() const { return kind() == NodeKind::kString; }
  bool is_list() const { return kind() == NodeKind::kList; }
  bool is_map() const { return kind() == NodeKind::kMap; }

  // Typed reading, for nodes that validate() has passed: the wrong type is our bug (FL_ASSERT).
  bool as_bool() const;
  std::int64_t as_integer() const;
  double as_number() const;  // an integer is a number too
  const std::string& as_string() const;
  const List& items() const;
  List& items();
  const Map& entries() const;
  Map& entries();
  std::size_t size() const;                      // of a list or a map
  const Node* find(std::string_view key) const;  // null where the map has no such key, or this is not a map
  Node* find(std::string_view key);
  const Node& at(std::string_view key) const;  // the key must be there
  const Node& at(std::size_t index) const;

  void set(std::string_view key, Node value);  // in a map: replaces in place, or appends
  bool erase(std::string_view key);            // false: there was none
  void push_back(Node value);                  // to a list

  const Position& position() const { return position_; }
  const Position& key_position(std::string_view key) const;  // where the map has the key, which must be there
  void set_position(Position position) { position_ = std::move(position); }
  void set_position_everywhere(const Position& position);  // here and in everything below
  // "faults[0].where.operator"; filled in by validate(), empty before.
  const std::string& path() const { return path_; }
  void set_path(std::string path) { path_ = std::move(path); }
  // The error for a mistake found later in a valid node: "recipes/e5.yaml:7: faults[0].where.operator: <complaint>".
  UsageError error(std::string_view complaint) const;

  // Same values in the same order; places do not count. NaN equals NaN, 0.0 differs from -0.0, 1 differs from 1.0.
  friend bool operator==(const Node& a, const Node& b);

 private:
  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Map>;

  Value value_;
  Position position_;
  std::string path_;
};

struct Node::Entry {
  std::string key;
  Node value;
  Position key_position = {};
};

// Out of the class because they instantiate vector<Entry>, and Entry is complete only now.
template <std::same_as<bool> Boolean>
Node::Node(Boolean value) : value_(value) {}

template <std::integral Integer>
  requires(!std::same_as<Integer, bool>)
Node::Node(Integer value) : value_(static_cast<std::int64_t>(value)) {
  FL_ASSERT(std::in_range<std::int64_t>(value));
}

// Throws UsageError ("file:line:column: ...") for anything but one well-formed document; `file` is only a name.
Node parse_yaml(std::string_view text, const std::string& file);
Node parse_json(std::string_view text, const std::string& file);
Node load_config(const std::filesystem::path& path);  // JSON if the name ends in .json, YAML otherwise

// The value of an unquoted YAML scalar: null, boolean, integer, number, else the string itself.
Node resolve_plain_scalar(std::string_view text);

Json to_json(const Node& node);                                  // NaN, Inf: UsageError
Node from_json(const Json& json, const std::string& file = "");  // same limits as a file
std::string to_yaml(const Node& node);                           // parse_yaml gives the node back

// For messages: "a map", "0.5", "the string 'matmull'"; long texts are shortened, control characters escaped.
std::string describe(const Node& node);
std::string describe_text(std::string_view text);  // 'matmull'
// "a.b", "a[3]", "a['x.y']"; long paths keep their tail.
std::string child_path(const std::string& parent, std::string_view key);
std::string child_path(const std::string& parent, std::size_t index);

}  // namespace faultline
