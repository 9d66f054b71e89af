// A recipe: the whole file that says what is to be done. Each module owns a section of it and registers that section's
// schema; this one registers the sections that belong to nobody else (model, seed, phases, faults, allow_partial).
// Registration is an explicit call, never a global constructor: the order of constructors across files is unspecified,
// and a section that a linker left out would be a section that nothing reads.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/schema.h"
#include "numeric/rule.h"

namespace faultline {

void register_recipe_sections();  // may be called again

Schema recipe_schema();  // of all sections registered so far, these included

// The file with its overrides, defaults filled in; every rule has been read, so combinations that a schema cannot
// express are refused too. Throws UsageError with file:line and path.
Node load_recipe(const std::filesystem::path& path, std::span<const std::string> overrides);

Node parse_recipe(std::string_view text, std::span<const std::string> overrides);  // the same from a text

}  // namespace faultline
