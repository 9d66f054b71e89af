// What the YAML and the JSON reader share: the source text is checked and normalised once, and both feed the same
// TreeBuilder, which enforces the limits of config.h. The limits are enforced while the tree grows, so that a file of
// a few hundred bytes of nested aliases is refused before it has filled the memory.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/config/config.h"

namespace faultline {

struct TextPlace {  // within the source text, from 1
  int line = 1;
  int column = 1;
};

// Thrown by the readers; their public entry points turn it into a UsageError with the file's name in front.
class ReadFailure : public std::exception {
 public:
  ReadFailure(TextPlace place, std::string reason) : place_(place), reason_(std::move(reason)) {}
  const char* what() const noexcept override { return reason_.c_str(); }
  TextPlace place() const { return place_; }

 private:
  TextPlace place_;
  std::string reason_;
};

// Drops the byte order mark, turns CRLF and CR into LF; refuses what is too large, not UTF-8, or not printable.
std::string prepare_source(std::string_view text);

bool is_valid_utf8(std::string_view text);
TextPlace place_of_offset(std::string_view text, std::size_t offset);

class TreeBuilder {
 public:
  explicit TreeBuilder(std::shared_ptr<const std::string> file) : file_(std::move(file)) {}

  void begin_list(TextPlace place);
  void begin_map(TextPlace place);
  void end();                     // closes the innermost list or map and puts it where it belongs
  const Node& innermost() const;  // the list or map that end() would close
  void key(std::string key, TextPlace place);
  void scalar(Node value, TextPlace place);
  void subtree(Node copy, TextPlace place);        // an alias: counted against the budgets, node by node
  void charge(const Node& copy, TextPlace place);  // counts what the caller keeps for later use as an alias

  bool wants_key() const { return !open_.empty() && open_.back().node.is_map() && !open_.back().pending; }
  bool in_list() const { return !open_.empty() && open_.back().node.is_list(); }
  std::size_t depth() const { return open_.size(); }
  TextPlace pending_key_place() const;  // of the key whose value is awaited
  Node take();

 private:
  struct Open {
    Node node;
    std::optional<Node::Entry> pending;
    std::unordered_set<std::string> keys;
  };

  void open(Node node, TextPlace place);
  void place_value(Node value);
  void count(const Node& node, TextPlace place, std::size_t depth);
  void count_text(std::string_view text, TextPlace place);
  Position position(TextPlace place) const { return {file_, place.line, place.column}; }

  std::shared_ptr<const std::string> file_;
  std::vector<Open> open_;
  std::optional<Node> root_;
  std::size_t nodes_ = 0;
  std::size_t text_ = 0;
};

// The readers proper; they throw ReadFailure.
Node read_yaml(std::string_view text, std::shared_ptr<const std::string> file);
Node read_json(std::string_view text, std::shared_ptr<const std::string> file);

}  // namespace faultline
