// The members of Node (config.h): plain reading and writing of the value tree. Maps are vectors searched from the
// front: a recipe's maps have a dozen keys, and their order is part of the value.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>

#include "base/config/config.h"

namespace faultline {
namespace {

bool same_number(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool same_entry(const Node::Entry& a, const Node::Entry& b) { return a.key == b.key && a.value == b.value; }

}  // namespace

Node::Node() = default;
Node::Node(double value) : value_(value) {}
Node::Node(std::string value) : value_(std::move(value)) {}
Node::Node(std::string_view value) : value_(std::string(value)) {}
Node::Node(const char* value) : value_(std::string(value)) {}
Node::Node(const Node&) = default;
Node::Node(Node&&) noexcept = default;
Node& Node::operator=(const Node&) = default;
Node& Node::operator=(Node&&) noexcept = default;
Node::~Node() = default;

Node Node::list() { return list(List()); }
Node Node::map() { return map(Map()); }

Node Node::list(List items) {
  Node node;
  node.value_ = std::move(items);
  return node;
}

Node Node::map(Map entries) {
  std::unordered_set<std::string_view> keys;
  for (const Entry& entry : entries) FL_ASSERT(keys.insert(entry.key).second);
  Node node;
  node.value_ = std::move(entries);
  return node;
}

bool Node::as_bool() const {
  FL_ASSERT(is_boolean());
  return std::get<bool>(value_);
}

std::int64_t Node::as_integer() const {
  FL_ASSERT(is_integer());
  return std::get<std::int64_t>(value_);
}

double Node::as_number() const {
  FL_ASSERT(is_number());
  return is_integer() ? static_cast<double>(as_integer()) : std::get<double>(value_);
}

const std::string& Node::as_string() const {
  FL_ASSERT(is_string());
  return std::get<std::string>(value_);
}

const Node::List& Node::items() const {
  FL_ASSERT(is_list());
  return std::get<List>(value_);
}

Node::List& Node::items() {
  FL_ASSERT(is_list());
  return std::get<List>(value_);
}

const Node::Map& Node::entries() const {
  FL_ASSERT(is_map());
  return std::get<Map>(value_);
}

Node::Map& Node::entries() {
  FL_ASSERT(is_map());
  return std::get<Map>(value_);
}

std::size_t Node::size() const { return is_list() ? items().size() : entries().size(); }

const Node* Node::find(std::string_view key) const {
  if (!is_map()) return nullptr;
  const Map& map = entries();
  const auto found = std::find_if(map.begin(), map.end(), [&](const Entry& entry) { return entry.key == key; });
  return found == map.end() ? nullptr : &found->value;
}

Node* Node::find(std::string_view key) { return const_cast<Node*>(std::as_const(*this).find(key)); }

const Node& Node::at(std::string_view key) const {
  const Node* value = find(key);
  FL_ASSERT(value != nullptr);
  return *value;
}

const Node& Node::at(std::size_t index) const {
  FL_ASSERT(index < items().size());
  return items()[index];
}

void Node::set(std::string_view key, Node value) {
  if (Node* present = find(key)) {
    *present = std::move(value);
  } else {
    Position position = value.position();
    entries().push_back({std::string(key), std::move(value), std::move(position)});
  }
}

bool Node::erase(std::string_view key) {
  return std::erase_if(entries(), [&](const Entry& entry) { return entry.key == key; }) > 0;
}

void Node::push_back(Node value) { items().push_back(std::move(value)); }

const Position& Node::key_position(std::string_view key) const {
  const Map& map = entries();
  const auto found = std::find_if(map.begin(), map.end(), [&](const Entry& entry) { return entry.key == key; });
  FL_ASSERT(found != map.end());
  return found->key_position;
}

void Node::set_position_everywhere(const Position& position) {
  position_ = position;
  if (is_list()) {
    for (Node& item : items()) item.set_position_everywhere(position);
  }
  if (is_map()) {
    for (Entry& entry : entries()) {
      entry.key_position = position;
      entry.value.set_position_everywhere(position);
    }
  }
}

UsageError Node::error(std::string_view complaint) const {
  std::string sentence = position_.text();
  if (!sentence.empty()) sentence += ": ";
  if (!path_.empty()) sentence += path_ + ": ";
  return UsageError(sentence.append(complaint));
}

bool operator==(const Node& a, const Node& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case NodeKind::kNull: return true;
    case NodeKind::kBoolean: return a.as_bool() == b.as_bool();
    case NodeKind::kInteger: return a.as_integer() == b.as_integer();
    case NodeKind::kNumber: return same_number(a.as_number(), b.as_number());
    case NodeKind::kString: return a.as_string() == b.as_string();
    case NodeKind::kList: return a.items() == b.items();
    case NodeKind::kMap:
      return std::equal(a.entries().begin(), a.entries().end(), b.entries().begin(), b.entries().end(), same_entry);
  }
  FL_ASSERT(false);
  return false;
}

}  // namespace faultline
