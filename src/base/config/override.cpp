#include "base/config/override.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/config/schema_data.h"
#include "base/text.h"

namespace faultline {
namespace {

std::optional<std::size_t> parse_index(std::string_view text) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return index;
}

// What the schema says about the children of one place. `schemas` are the alternatives that the place may have.
struct Known {
  std::vector<std::string> names;
  std::vector<Schema> children;  // those of the key that was asked for
};

void collect_known(const Schema& schema, const Node* node, const std::string& key, Known& known) {
  const SchemaData& data = schema.data();
  const bool is_there = node != nullptr && node->find(key) != nullptr;
  switch (data.kind) {
    case SchemaKind::kMap:
      for (const SchemaField& field : data.fields) {
        known.names.push_back(field.name);
        if (field.name == key) known.children.push_back(field.schema);
      }
      if (data.extra && is_there && known.children.empty()) known.children.push_back(*data.extra);
      return;
    case SchemaKind::kTagged: {
      known.names.push_back(data.tag_key);
      if (key == data.tag_key) known.children.push_back(Schema::choice(data.names));
      const Node* tag = node == nullptr ? nullptr : node->find(data.tag_key);
      for (std::size_t i = 0; i < data.parts.size(); ++i) {
        const bool other = tag != nullptr && tag->is_string() && tag->as_string() != data.names[i];
        if (!other) collect_known(data.parts[i], node, key, known);
      }
      return;
    }
    case SchemaKind::kAnyOf:
      for (const Schema& part : data.parts) collect_known(part, node, key, known);
      return;
    case SchemaKind::kList: known.children.push_back(data.parts[0]); return;
    default: return;
  }
}

// Walks a path through the configuration, and through the schema beside it.
class Walk {
 public:
  Walk(Node& root, const Override& change, const Schema* schema) : change_(change), here_(&root) {
    if (schema != nullptr) schemas_.push_back(*schema);
    if (here_->is_null()) *here_ = Node::map();  // an empty file
  }

  void run() {
    while (true) {
      const std::size_t parts = match();
      if (next_ + parts == change_.path.size()) return finish(parts);
      step(parts);
    }
  }

 private:
  // How many segments make the next key: one, unless only their join with dots is a key of this map.
  std::size_t match() const {
    std::string joined = change_.path[next_];
    for (std::size_t parts = 1;; ++parts) {
      if (here_->find(joined) != nullptr) return parts;
      if (next_ + parts == change_.path.size()) return 1;
      joined += '.' + change_.path[next_ + parts];
    }
  }

  std::string key_of(std::size_t parts) const {
    std::string key = change_.path[next_];
    for (std::size_t i = 1; i < parts; ++i) key += '.' + change_.path[next_ + i];
    return key;
  }

  Node* child(const std::string& key) {
    if (!here_->is_list()) return here_->find(key);
    const std::optional<std::size_t> index = parse_index(key);
    return index && *index < here_->size() ? &here_->items()[*index] : nullptr;
  }

  // An absent child may come into being if the override adds, or if the schema knows it.
  void require_creatable(const std::string& key, const Known& known) const {
    if (here_->is_list()) {
      const bool appends = change_.action == OverrideAction::kAdd || change_.action == OverrideAction::kForce;
      if (appends && parse_index(key) == here_->size()) return;
      throw override_error(change_.text,
                           fmt::format("{} has {} items, numbered from 0; there is no item {}{}", name_here(),
                                       here_->size(), describe_text(key), appends ? "" : append_hint()));
    }
    if (!here_->is_map()) {
      throw override_error(change_.text, fmt::format("{} is {}, not a map", name_here(), describe(*here_)));
    }
    if (change_.action == OverrideAction::kAdd || change_.action == OverrideAction::kForce) return;
    if (change_.action == OverrideAction::kChange && !known.children.empty()) return;
    const bool removes = change_.action == OverrideAction::kRemove;
    if (removes && !known.children.empty()) {
      throw override_error(change_.text,
                           fmt::format("{} is not set in {}, so there is nothing to remove; leave the override out",
                                       describe_text(key), name_here()));
    }
    // What is to be removed must be there; what the schema knows helps only to set it.
    std::vector<std::string> names = removes ? std::vector<std::string>() : known.names;
    for (const Node::Entry& entry : here_->entries()) names.push_back(entry.key);
    std::string hint = key.size() <= kMaxKeyBytes ? did_you_mean(key, names) : "";
    if (hint.empty() && change_.action == OverrideAction::kChange)
      hint = fmt::format("; to add it, write +{}", change_.text);
    throw override_error(change_.text, fmt::format("there is no {} in {}{}", describe_text(key), name_here(), hint));
  }

  std::string append_hint() const {
    return change_.action == OverrideAction::kChange ? fmt::format("; to append, use +…{}=", here_->size()) : "";
  }

  std::string name_here() const { return path_.empty() ? "the configuration" : describe_text(path_); }

  Known known(const std::string& key) const {
    Known known;
    for (const Schema& schema : schemas_) collect_known(schema, here_, key, known);
    return known;
  }

  void step(std::size_t parts) {
    const std::string key = key_of(parts);
    Known below = known(key);
    Node* next = child(key);
    if (next == nullptr) {
      require_creatable(key, below);
      Node fresh = Node::map();
      fresh.set_position(command_line_position());
      next = put(key, std::move(fresh));
    }
    path_ = here_->is_list() ? child_path(path_, *parse_index(key)) : child_path(path_, key);
    here_ = next;
    schemas_ = std::move(below.children);
    next_ += parts;
  }

  Node* put(const std::string& key, Node value) {
    if (here_->is_list()) {
      here_->push_back(std::move(value));
      return &here_->items().back();
    }
    here_->set(key, std::move(value));
    return here_->find(key);
  }

  void finish(std::size_t parts) {
    const std::string key = key_of(parts);
    Node* target = child(key);
    if (target == nullptr) {
      require_creatable(key, known(key));
      put(key, change_.value);
    } else if (change_.action == OverrideAction::kAdd) {
      throw override_error(change_.text, fmt::format("{} is there already ({}); to change it, leave out the plus",
                                                     describe_text(key), target->position().text()));
    } else if (change_.action != OverrideAction::kRemove) {
      *target = change_.value;
    } else if (here_->is_list()) {
      here_->items().erase(here_->items().begin() + (target - here_->items().data()));
    } else {
      here_->erase(key);
    }
  }

  const Override& change_;
  Node* here_;
  std::vector<Schema> schemas_;
  std::string path_;      // of here_
  std::size_t next_ = 0;  // first segment not yet walked
};

}  // namespace

void apply_override(Node& root, const Override& change, const Schema* schema) {
  Node changed = root;  // so that a refused override leaves no half-made path behind
  Walk(changed, change, schema).run();
  root = std::move(changed);
}

Node apply_overrides(Node root, std::span<const std::string> overrides, const Schema* schema) {
  for (const std::string& text : overrides) apply_override(root, parse_override(text), schema);
  return root;
}

}  // namespace faultline
