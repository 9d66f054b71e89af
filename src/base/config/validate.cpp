// Checks a configuration against its Schema. It never stops at the first problem: each value that is wrong is reported
// and left as it is, and the walk goes on beside it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/config/schema_data.h"
#include "base/text.h"

namespace faultline {
namespace {

constexpr std::size_t kMaxProblemsShown = 200;
constexpr std::size_t kMaxHintBytes = 100;

std::string nearest(const std::string& typed, const std::vector<std::string>& names) {
  return typed.size() <= kMaxHintBytes ? did_you_mean(typed, names) : "";  // the distance costs length times length
}

class Validation {
 public:
  Node check(const Node& node, const Schema& schema, const std::string& path);

  std::size_t count() const { return count_; }
  std::string text() const;

 private:
  Node check_shape(const Node& node, const Schema& schema, const std::string& path);
  Node check_integer(const Node& node, const Schema& schema, const std::string& path);
  Node check_number(const Node& node, const Schema& schema, const std::string& path);
  Node check_string(const Node& node, const Schema& schema, const std::string& path);
  Node check_choice(const Node& node, const Schema& schema, const std::string& path);
  Node check_list(const Node& node, const Schema& schema, const std::string& path);
  Node check_map(const Node& node, const Schema& schema, const std::string& path);
  Node check_tagged(const Node& node, const Schema& schema, const std::string& path);
  Node check_any_of(const Node& node, const Schema& schema, const std::string& path);
  Node check_anything(const Node& node, const std::string& path);
  void run_checks(const Node& node, const Schema& schema);
  void check_fields(const Node& node, const SchemaData& map, const std::string& path, Node& result);
  void check_unknown_keys(const Node& node, const SchemaData& map, std::string_view tag_key, const std::string& path,
                          Node& result);

  void report(const Position& position, const std::string& path, std::string_view complaint);
  Node mismatch(const Node& node, const Schema& schema, const std::string& path, std::string_view hint = "");
  void adopt(const Validation& other);

  std::vector<std::string> problems_;  // the first kMaxProblemsShown
  std::size_t count_ = 0;
  bool failed_a_check_ = false;  // right in shape, refused by a custom check
};

void Validation::report(const Position& position, const std::string& path, std::string_view complaint) {
  if (++count_ > kMaxProblemsShown) return;
  std::string problem = position.text();
  if (!problem.empty()) problem += ": ";
  if (!path.empty()) problem += path + ": ";
  problems_.push_back(problem.append(complaint));
}

std::string Validation::text() const {
  std::string text;
  for (const std::string& problem : problems_) text += (text.empty() ? "" : "\n") + problem;
  if (count_ > problems_.size()) text += fmt::format("\n… and {} more problems", count_ - problems_.size());
  return text;
}

void Validation::adopt(const Validation& other) {
  for (const std::string& problem : other.problems_) {
    if (problems_.size() < kMaxProblemsShown) problems_.push_back(problem);
  }
  count_ += other.count_;
}

Node Validation::mismatch(const Node& node, const Schema& schema, const std::string& path, std::string_view hint) {
  report(node.position(), path, fmt::format("expected {}, got {}{}", describe(schema), describe(node), hint));
  return node;
}

Node Validation::check(const Node& node, const Schema& schema, const std::string& path) {
  const std::size_t before = count_;
  Node result = check_shape(node, schema, path);
  result.set_position(node.position());
  result.set_path(path);
  if (count_ == before) run_checks(result, schema);
  return result;
}

void Validation::run_checks(const Node& node, const Schema& schema) {
  for (const Schema::Check& custom : schema.data().checks) {
    const std::string complaint = custom(node);
    if (complaint.empty()) continue;
    failed_a_check_ = true;
    return report(node.position(), node.path(), complaint);
  }
}

Node Validation::check_shape(const Node& node, const Schema& schema, const std::string& path) {
  switch (schema.data().kind) {
    case SchemaKind::kNull: return node.is_null() ? node : mismatch(node, schema, path);
    case SchemaKind::kBoolean: return node.is_boolean() ? node : mismatch(node, schema, path);
    case SchemaKind::kInteger: return check_integer(node, schema, path);
    case SchemaKind::kNumber: return check_number(node, schema, path);
    case SchemaKind::kString: return check_string(node, schema, path);
    case SchemaKind::kChoice: return check_choice(node, schema, path);
    case SchemaKind::kList: return check_list(node, schema, path);
    case SchemaKind::kMap: return check_map(node, schema, path);
    case SchemaKind::kTagged: return check_tagged(node, schema, path);
    case SchemaKind::kAnyOf: return check_any_of(node, schema, path);
    case SchemaKind::kAnything: return check_anything(node, path);
  }
  FL_ASSERT(false);
  return node;
}

Node Validation::check_integer(const Node& node, const Schema& schema, const std::string& path) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: up to here a double names one integer
  Node value = node;
  if (node.kind() == NodeKind::kNumber) {
    const double number = node.as_number();
    if (!(std::abs(number) <= kExact) || number != std::floor(number)) return mismatch(node, schema, path);
    value = static_cast<std::int64_t>(number);
  }
  const IntegerRange& range = schema.data().integer;
  const bool fits = value.is_integer() && value.as_integer() >= range.min && value.as_integer() <= range.max;
  return fits ? value : mismatch(node, schema, path);
}

Node Validation::check_number(const Node& node, const Schema& schema, const std::string& path) {
  if (!node.is_number() || !std::isfinite(node.as_number())) return mismatch(node, schema, path);
  const double value = node.as_number();
  if (node.is_integer() && (value >= 0x1p63 || static_cast<std::int64_t>(value) != node.as_integer())) {
    return mismatch(node, schema, path, ", an integer that a double cannot hold exactly");
  }
  const NumberRange& range = schema.data().number;
  const bool fits = (range.exclusive_min ? value > range.min : value >= range.min) &&
                    (range.exclusive_max ? value < range.max : value <= range.max);
  return fits ? Node(value) : mismatch(node, schema, path);
}

Node Validation::check_string(const Node& node, const Schema& schema, const std::string& path) {
  if (!node.is_string()) return mismatch(node, schema, path, node.is_number() || node.is_boolean() ? "; quote it" : "");
  const std::string& text = node.as_string();
  const auto characters = static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  const SizeRange& size = schema.data().size;
  return characters >= size.min && characters <= size.max ? node : mismatch(node, schema, path);
}

Node Validation::check_choice(const Node& node, const Schema& schema, const std::string& path) {
  const std::vector<std::string>& names = schema.data().names;
  if (!node.is_string()) return mismatch(node, schema, path);
  if (std::find(names.begin(), names.end(), node.as_string()) != names.end()) return node;
  return mismatch(node, schema, path, nearest(node.as_string(), names));
}

Node Validation::check_list(const Node& node, const Schema& schema, const std::string& path) {
  if (!node.is_list()) return mismatch(node, schema, path);
  const SizeRange& size = schema.data().size;
  if (node.size() < size.min || node.size() > size.max) mismatch(node, schema, path);
  Node result = Node::list();
  for (std::size_t i = 0; i < node.size(); ++i) {
    result.push_back(check(node.at(i), schema.data().parts[0], child_path(path, i)));
  }
  return result;
}

Node Validation::check_map(const Node& node, const Schema& schema, const std::string& path) {
  if (!node.is_map()) return mismatch(node, schema, path);
  Node result = Node::map();
  check_fields(node, schema.data(), path, result);
  check_unknown_keys(node, schema.data(), "", path, result);
  return result;
}

void Validation::check_fields(const Node& node, const SchemaData& map, const std::string& path, Node& result) {
  for (const SchemaField& field : map.fields) {
    const std::string field_path = child_path(path, field.name);
    if (const Node* value = node.find(field.name)) {
      Node checked = check(*value, field.schema, field_path);
      result.entries().push_back({field.name, std::move(checked), node.key_position(field.name)});
    } else if (field.options.default_value && (!field.options.default_if || field.options.default_if(result))) {
      Node value_by_default = *field.options.default_value;
      value_by_default.set_position_everywhere(node.position());
      result.set(field.name, check(value_by_default, field.schema, field_path));
    } else if (field.options.required) {
      report(node.position(), path,
             fmt::format("the key '{}' is missing; expected {}", field.name, describe(field.schema)));
    }
  }
}

void Validation::check_unknown_keys(const Node& node, const SchemaData& map, std::string_view tag_key,
                                    const std::string& path, Node& result) {
  std::vector<std::string> known = field_names(map);
  if (!tag_key.empty()) known.emplace_back(tag_key);
  for (const Node::Entry& entry : node.entries()) {
    if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
    const std::string key_path = child_path(path, entry.key);
    if (map.extra) {
      result.entries().push_back({entry.key, check(entry.value, *map.extra, key_path), entry.key_position});
      continue;
    }
    std::string hint = nearest(entry.key, known);
    if (hint.empty() && known.empty()) hint = "; no keys are allowed here";
    if (hint.empty()) hint = fmt::format("; known here: {}", fmt::join(known, ", "));
    report(entry.key_position, key_path, "unknown key" + hint);
  }
}

Node Validation::check_tagged(const Node& node, const Schema& schema, const std::string& path) {
  const SchemaData& data = schema.data();
  if (!node.is_map()) return mismatch(node, schema, path);
  const Schema names = Schema::choice(data.names);
  const Node* tag = node.find(data.tag_key);
  if (tag == nullptr) {
    report(node.position(), path, fmt::format("the key '{}' is missing; expected {}", data.tag_key, describe(names)));
    return node;
  }
  const std::size_t before = count_;
  Node result = Node::map();
  Node checked_tag = check(*tag, names, child_path(path, data.tag_key));
  result.entries().push_back({data.tag_key, std::move(checked_tag), node.key_position(data.tag_key)});
  if (count_ > before) return node;  // which fields are right depends on the tag
  const auto found = std::find(data.names.begin(), data.names.end(), tag->as_string());
  const Schema& chosen = data.parts[static_cast<std::size_t>(found - data.names.begin())];
  check_fields(node, chosen.data(), path, result);
  check_unknown_keys(node, chosen.data(), data.tag_key, path, result);
  result.set_position(node.position());
  result.set_path(path);
  if (count_ == before) run_checks(result, chosen);
  return result;
}

bool may_take(const Schema& schema, const Node& node) {
  switch (schema.data().kind) {
    case SchemaKind::kNull: return node.is_null();
    case SchemaKind::kBoolean: return node.is_boolean();
    case SchemaKind::kInteger:
    case SchemaKind::kNumber: return node.is_number();
    case SchemaKind::kString:
    case SchemaKind::kChoice: return node.is_string();
    case SchemaKind::kList: return node.is_list();
    case SchemaKind::kMap:
    case SchemaKind::kTagged: return node.is_map();
    case SchemaKind::kAnyOf:
      return std::any_of(schema.data().parts.begin(), schema.data().parts.end(),
                         [&](const Schema& part) { return may_take(part, node); });
    case SchemaKind::kAnything: return true;
  }
  return false;
}

Node Validation::check_any_of(const Node& node, const Schema& schema, const std::string& path) {
  std::vector<Validation> of_its_type;
  std::vector<std::string> words;
  for (const Schema& alternative : schema.data().parts) {
    Validation attempt;
    Node result = attempt.check(node, alternative, path);
    if (attempt.count() == 0) return result;
    if (may_take(alternative, node)) of_its_type.push_back(std::move(attempt));
    words.insert(words.end(), alternative.data().names.begin(), alternative.data().names.end());
  }
  // Only one alternative could have taken it: what is wrong inside a list or map, or what a check found, says more
  // than the alternatives.
  if (of_its_type.size() == 1 && (node.is_list() || node.is_map() || of_its_type[0].failed_a_check_)) {
    adopt(of_its_type[0]);
    return node;
  }
  return mismatch(node, schema, path, node.is_string() ? nearest(node.as_string(), words) : "");
}

Node Validation::check_anything(const Node& node, const std::string& path) {
  if (node.is_number() && !std::isfinite(node.as_number())) {
    report(node.position(), path, fmt::format("expected a finite number, got {}", node.as_number()));
  }
  Node result = node;
  if (node.is_list()) {
    for (std::size_t i = 0; i < node.size(); ++i) {
      result.items()[i] = check(node.at(i), Schema::anything(), child_path(path, i));
    }
  }
  if (node.is_map()) {
    for (Node::Entry& entry : result.entries()) {
      entry.value = check(Node(entry.value), Schema::anything(), child_path(path, entry.key));
    }
  }
  return result;
}

}  // namespace

Node validate(const Node& node, const Schema& schema) {
  Validation validation;
  Node result = validation.check(node, schema, "");
  if (validation.count() > 0) throw UsageError(validation.text());
  return result;
}

}  // namespace faultline
