// Changes to a configuration from the command line, as in Hydra. A plain `a.b=v` may only change what is there (in the
// file, or known to the schema), so that a typing error cannot add a key that nothing reads; adding is asked for with a
// plus, removing with a tilde. Lists are indexed (`faults.0.name=x`, `faults[0].name=x`), a key that holds a dot is
// written `a['x.y']=v` (or plainly, where it exists). An unquoted value is taken whole: `operator=*mm` and `x=a: b` are
// strings; values that open with [ { ' or " are YAML flow values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/config.h"
#include "base/config/schema.h"

namespace faultline {

enum class OverrideAction {
  kChange,  // a.b=v    must exist
  kAdd,     // +a.b=v   must not exist
  kForce,   // ++a.b=v  either
  kRemove,  // ~a.b     must exist
};

struct Override {
  OverrideAction action = OverrideAction::kChange;
  std::vector<std::string> path;
  Node value;        // null for kRemove; positions say "command line"
  std::string text;  // as typed, for messages
};

// Throws UsageError "override 'a.b': ..." where the text is malformed.
Override parse_override(std::string_view text);

// Applies them left to right, each seeing the one before. With a schema, `a.b=v` may also set a key that the file
// leaves out and the schema knows. The result is not yet validated.
Node apply_overrides(Node root, std::span<const std::string> overrides, const Schema* schema = nullptr);
void apply_override(Node& root, const Override& change, const Schema* schema = nullptr);

UsageError override_error(std::string_view text, std::string_view complaint);  // "override 'a.b=v': <complaint>"
const Position& command_line_position();

}  // namespace faultline
