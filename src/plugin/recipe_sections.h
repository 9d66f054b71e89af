// All sections of a recipe, for those who read whole recipes: the program, the C++ library and the operators of Python.
#pragma once

#include <c10/util/ArrayRef.h>

#include <string>

#include "recipe/recipe.h"

namespace faultline::plugin {

void register_recipe_sections();  // may be called again

// As Python gives it: a file, or the recipe itself (a text with a newline or a brace).
Node read_clients_recipe(const std::string& recipe, c10::ArrayRef<std::string> overrides);

}  // namespace faultline::plugin
