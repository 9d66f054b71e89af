#include "site/condition.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace faultline::site {
namespace {

constexpr int64_t kMost = int64_t{1} << 48;

bool parse_number(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value >= 0 && value <= kMost;
}

// '>8', '>=8', '<8', '<=8', '8', '4-16'
std::optional<Bounds> parse_bounds(std::string_view text) {
  Bounds bounds;
  int64_t value = 0;
  for (const std::string_view sign : {">=", "<=", ">", "<"}) {
    if (!text.starts_with(sign)) continue;
    std::string_view number = text.substr(sign.size());
    number.remove_prefix(std::min(number.find_first_not_of(' '), number.size()));
    if (!parse_number(number, value)) return {};
    const int64_t strict = sign.size() == 1 ? 1 : 0;
    (sign.front() == '>' ? bounds.least : bounds.most) = sign.front() == '>' ? value + strict : value - strict;
    return bounds;
  }
  const std::size_t dash = text.find('-');
  if (!parse_number(text.substr(0, dash), bounds.least)) return {};
  if (dash == std::string_view::npos) return Bounds{bounds.least, bounds.least};
  if (!parse_number(text.substr(dash + 1), bounds.most)) return {};
  return bounds;
}

std::string check_bounds(const Node& node) {
  const std::string& text = node.as_string();
  const auto bounds = parse_bounds(text);
  if (!bounds) return fmt::format("a condition on a number is '>8', '>=8', '<8', '<=8', 8 or '4-16'; got '{}'", text);
  return bounds->least <= bounds->most ? "" : fmt::format("no number is '{}'", text);
}

Schema bounds_schema() {
  return Schema::any_of({Schema::integer({.min = 0, .max = kMost}), Schema::string().check(check_bounds)})
      .described_as("8, '>8', '>=8', '<8', '<=8' or '4-16'");
}

std::optional<Bounds> read_bounds(const Node* node) {
  if (node == nullptr) return {};
  return node->is_string() ? parse_bounds(node->as_string()) : Bounds{node->as_integer(), node->as_integer()};
}

std::string check_condition(const Node& when) {
  if (when.entries().empty()) return "say when: rows, columns, forward or decode_step";
  if (when.find("decode_step") == nullptr) return "";
  const Node* forward = when.find("forward");
  if (forward == nullptr || (forward->is_string() && forward->as_string() == "decode")) return "";
  return "decode_step counts decodings; leave forward out, or write forward: decode";
}

}  // namespace

Schema condition_schema() {
  std::vector<std::string> names;
  for (int k = 0; k < kForwardKinds; ++k) names.emplace_back(forward_kind_name(static_cast<ForwardKind>(k)));
  const Schema kind = Schema::choice(names);
  return Schema::map()
      .field("rows", bounds_schema(), {.doc = "of the tensor, all dimensions but the last: '>8', 1, '2-4'"})
      .field("columns", bounds_schema(), {.doc = "of the tensor's last dimension, written like rows"})
      .field("forward", Schema::any_of({kind, Schema::list(kind, {.min = 1})}),
             {.doc = "kinds of forward: whole, prefill, decode, body, head"})
      .field("decode_step", bounds_schema(), {.doc = "decodings since the last prefill, the first is 0"})
      .check(check_condition);
}

Condition read_condition(const Node& when) {
  Condition condition{
      read_bounds(when.find("rows")), read_bounds(when.find("columns")), {}, read_bounds(when.find("decode_step"))};
  if (const Node* forward = when.find("forward")) {
    const auto add = [&](const Node& name) { condition.forwards.push_back(*forward_kind_by_name(name.as_string())); };
    if (forward->is_list())
      std::for_each(forward->items().begin(), forward->items().end(), add);
    else
      add(*forward);
  } else if (condition.decode_step) {
    condition.forwards = {ForwardKind::kDecode};
  }
  return condition;
}

bool means_kind(const Condition& when, ForwardKind kind) {
  return when.forwards.empty() || std::find(when.forwards.begin(), when.forwards.end(), kind) != when.forwards.end();
}

bool holds(const Condition& when, int64_t rows, int64_t columns) {
  if (when.rows && !when.rows->hold(rows)) return false;
  if (when.columns && !when.columns->hold(columns)) return false;
  if (!means_kind(when, forward_kind())) return false;
  return !when.decode_step || when.decode_step->hold(decode_step());
}

}  // namespace faultline::site
