// Fuzzes everything that reads a user's bytes: YAML and JSON in, YAML out and in again, validation against a schema
// that uses every kind, overrides. The first byte picks what the rest is; only UsageError may leave the code under
// test.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/config/config.h"
#include "base/config/override.h"
#include "base/config/schema.h"
#include "base/fuzz_target.h"
#include "base/json.h"

namespace {

using namespace faultline;

void require(bool condition) {
  if (!condition) std::abort();
}

Schema recipe_like() {
  const Schema layer = Schema::any_of({Schema::integer({.min = 0, .max = 200}), Schema::choice({"all"}),
                                       Schema::list(Schema::integer({.min = 0}), {.min = 1, .max = 8})});
  const Schema what = Schema::tagged(
      "kind", {{"zero", Schema::map()},
               {"noise", Schema::map().field("strength", Schema::number({.min = 0, .max = 1, .exclusive_min = true}),
                                             {.default_value = 0.05})}});
  const Schema fault = Schema::map()
                           .field("name", Schema::string({.min = 1, .max = 40}), {.required = true})
                           .field("layer", layer, {.default_value = "all"})
                           .field("what", what);
  return Schema::map()
      .field("seed", Schema::integer(), {.default_value = 7})
      .field("on", Schema::boolean())
      .field("faults", Schema::list(fault), {.default_value = Node::list()})
      .field("arms", Schema::map().extra(Schema::anything()))
      .check([](const Node& node) { return node.at("seed").as_integer() == 13 ? "unlucky" : ""; });
}

const Schema& schema() {
  static const Schema schema = recipe_like();
  return schema;
}

void require_round_trip(const Node& node) {
  const std::string text = to_yaml(node);
  if (text.size() <= kMaxConfigBytes) require(parse_yaml(text, "again") == node);
}

// As JSON has it: the keys of every map in order.
Node with_sorted_keys(Node node) {
  if (node.is_list()) {
    for (Node& item : node.items()) item = with_sorted_keys(std::move(item));
  }
  if (node.is_map()) {
    for (Node::Entry& entry : node.entries()) entry.value = with_sorted_keys(std::move(entry.value));
    std::ranges::sort(node.entries(), {}, &Node::Entry::key);
  }
  return node;
}

void check_tree(const Node& node) {
  require_round_trip(node);
  try {
    const Json json = to_json(node);
    const Node sorted = with_sorted_keys(node);
    require(from_json(json) == sorted);
    const std::string text = json.dump();
    if (text.size() <= kMaxConfigBytes) require(parse_json(text, "again.json") == sorted);
  } catch (const UsageError&) {  // NaN
  }
  try {
    const Node valid = validate(node, schema());
    require(valid.at("seed").is_integer());
    require(validate(valid, schema()) == valid);
    require_round_trip(valid);
  } catch (const UsageError&) {
  }
}

void check_overrides(const std::string& text) {
  Node node = parse_yaml("{seed: 1, faults: [{name: a, what: {kind: noise}}], arms: {x: {a.b: 1}}}", "base");
  std::size_t start = 0;
  while (start <= text.size()) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::vector<std::string> one = {text.substr(start, end - start)};
    start = end + 1;
    try {
      node = apply_overrides(node, one, start % 2 == 0 ? &schema() : nullptr);
    } catch (const UsageError&) {
    }
  }
  check_tree(node);
}

}  // namespace

FAULTLINE_FUZZ_TARGET(config_fuzz)(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0:
      case 1: check_tree(parse_yaml(text, "fuzz.yaml")); break;
      case 2: check_tree(parse_json(text, "fuzz.json")); break;
      default: check_overrides(text);
    }
  } catch (const UsageError&) {
  }
  return 0;
}
