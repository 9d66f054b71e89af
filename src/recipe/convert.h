// Other systems' settings as a recipe: what they meant, in our words, with a note wherever the meaning is not quite the
// same. The result has passed the recipe's own checks.
#pragma once

#include "recipe/foreign_keys.h"

namespace faultline::recipe {

struct Conversion {
  Node recipe;
  std::string command;  // that carries it out: train, run, diagnose --recipe
  std::vector<std::string> notes;
  std::vector<std::string> left;  // keys of verl's own
};
// UsageError: a key or value that is not known, two settings that contradict each other, nothing that is switched on.
Conversion convert_settings(const std::vector<ForeignSetting>& settings);

}  // namespace faultline::recipe
