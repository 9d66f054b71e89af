#include "site/selector.h"

#include <algorithm>
#include <charconv>

namespace faultline::site {
namespace {

constexpr int64_t kMaxLayer = 100000;

bool parse_layer(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value >= 0 && value <= kMaxLayer;
}

std::string check_range(const Node& node) {
  const std::string& text = node.as_string();
  if (text == "all") return "";
  const std::size_t dash = text.find('-');
  int64_t first = 0, last = 0;
  if (dash == std::string::npos || !parse_layer(text.substr(0, dash), first) ||
      !parse_layer(text.substr(dash + 1), last)) {
    return "a layer is a number (15), a range ('10-20') or all; got '" + text + "'";
  }
  if (first <= last) return "";
  return "the range '" + text + "' is empty: it counts downwards; write '" + std::to_string(last) + '-' +
         std::to_string(first) + "'";
}

LayerRange read_one(const Node& node) {
  if (node.is_integer()) return {node.as_integer(), node.as_integer()};
  const std::string& text = node.as_string();
  LayerRange range;
  const std::size_t dash = text.find('-');
  FL_ASSERT(parse_layer(text.substr(0, dash), range.first) && parse_layer(text.substr(dash + 1), range.last));
  return range;
}

// Their names say which surface they are; another one would not be what acts.
std::string check_end_of_layer(const Node& where) {
  const Node *module = where.find("module"), *surface = where.find("surface");
  if (module == nullptr || surface == nullptr) return "";
  const bool output = module->as_string() == "layer_output", input = module->as_string() == "layer_input";
  if ((output && surface->as_string() == "input") || (input && surface->as_string() == "output"))
    return "module: " + module->as_string() + " is never a layer's " + surface->as_string() +
           "; leave surface out, or write module: layer_" + surface->as_string();
  return "";
}

std::string check_selector(const Node& where) {
  if ((where.find("operator") != nullptr) == (where.find("module") != nullptr)) {
    return "name what to tap: operator (a family, a name or a glob) or module (a role or a glob), one of them";
  }
  return check_end_of_layer(where);
}

}  // namespace

std::string_view surface_name(Surface surface) {
  switch (surface) {
    case Surface::kInput: return "input";
    case Surface::kOutput: return "output";
    case Surface::kWeight: return "weight";
    case Surface::kBias: return "bias";
    case Surface::kGradient: break;
  }
  return "gradient";
}

Schema layers_schema() {
  const Schema one =
      Schema::any_of({Schema::integer({.min = 0, .max = kMaxLayer}), Schema::string().check(check_range)});
  return Schema::any_of({Schema::integer({.min = 0, .max = kMaxLayer}), Schema::string().check(check_range),
                         Schema::list(one, {.min = 1})})
      .described_as("a layer: 15, '10-20', all, or a list of these");
}

std::vector<LayerRange> read_layers(const Node& layers) {
  if (layers.is_string() && layers.as_string() == "all") return {};
  if (!layers.is_list()) return {read_one(layers)};
  std::vector<LayerRange> ranges;
  for (const Node& item : layers.items()) {
    if (item.is_string() && item.as_string() == "all") return {};
    ranges.push_back(read_one(item));
  }
  return ranges;
}

Schema selector_schema() {
  return Schema::map()
      .field("operator", Schema::string({.min = 1, .max = 200}),
             {.doc = "operator family (matmul), exact name (aten::mm) or glob (aten::*mm)"})
      .field("module", Schema::string({.min = 1, .max = 200}),
             {.doc = "module role (layer_output, rmsnorm, down_proj) or glob over module paths"})
      .field("layer", layers_schema(), {.default_value = Node("all"), .doc = "15, '10-20', all, or a list"})
      .field("surface", Schema::choice({"input", "output", "weight", "bias", "gradient"}),
             {.doc = "default: output for operators and layer_output, input for other modules"})
      .field("except", Schema::list(Schema::string({.min = 1})), {.doc = "names, roles or layers to leave out"})
      .check(check_selector);
}

Selector read_selector(const Node& where) {
  Selector selector;
  if (const Node* op = where.find("operator")) selector.operator_pattern = op->as_string();
  if (const Node* module = where.find("module")) selector.module_pattern = module->as_string();
  selector.layers = read_layers(where.at("layer"));
  const bool of_module = selector.operator_pattern.empty() && selector.module_pattern != "layer_output";
  selector.surface = of_module ? Surface::kInput : Surface::kOutput;
  if (const Node* surface = where.find("surface")) {
    for (const Surface one : {Surface::kInput, Surface::kOutput, Surface::kWeight, Surface::kBias, Surface::kGradient})
      if (surface_name(one) == surface->as_string()) selector.surface = one;
  }
  if (const Node* except = where.find("except")) {
    for (const Node& item : except->items()) selector.except.push_back(item.as_string());
  }
  return selector;
}

}  // namespace faultline::site
