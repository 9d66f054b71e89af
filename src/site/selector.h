// `where:` — which sites a rule means: operators by family, name or glob, or modules by role or glob; which layers; on
// which surface. Here it is only read and checked for form; whether anything matches is for the census to say.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/schema.h"

namespace faultline::site {

enum class Surface { kInput, kOutput, kWeight, kGradient, kBias };

struct LayerRange {
  int64_t first = 0;
  int64_t last = 0;  // included
};

struct Selector {
  std::string operator_pattern;  // one of these two is set
  std::string module_pattern;
  std::vector<LayerRange> layers;  // empty: all, and whatever belongs to no layer
  Surface surface =
      Surface::kOutput;  // as written; else output of operators and of layer_output, input of other modules
  std::vector<std::string> except;
};

std::string_view surface_name(Surface surface);  // "input"
// What is faulted is a copy of a parameter: it is made once and read often.
constexpr bool is_of_parameters(Surface surface) { return surface == Surface::kWeight || surface == Surface::kBias; }

Schema selector_schema();
Selector read_selector(const Node& where);  // validated

Schema layers_schema();  // 15, "10-20", "all", [1, 2, "5-7"]
std::vector<LayerRange> read_layers(const Node& layers);

}  // namespace faultline::site
