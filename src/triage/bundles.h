// Named bundles of environment variables: mitigations, which a cell stacks, and environments, of which it has one.
// Built-in ones here, others from files. Two bundles of a cell that set one variable differently are an error, since
// one of them would silently not be tested; so is a variable that no recipe may set (variables.h).
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/config/schema.h"

namespace faultline::triage {

using Environment = std::map<std::string, std::string>;

struct Bundle {
  std::string name;
  std::string description;
  Environment variables;
  std::string require_log;  // a text that a trial's log must hold, or nothing has read the variables; "": not asked
};

class Catalogue {
 public:
  Catalogue();  // the built-in ones
  // `mitigations:` and `environments:` of a file or recipe: {name: {description, env, require_log}}.
  void add(const Node& definitions, bool mitigations);
  const std::vector<Bundle>& mitigations() const { return mitigations_; }
  const std::vector<Bundle>& environments() const { return environments_; }
  const Bundle& mitigation(const Node& name) const;  // UsageError with the nearest name
  const Bundle& environment(const Node& name) const;

 private:
  std::vector<Bundle> mitigations_, environments_;
};

Schema bundles_schema();      // {name: {description, env: {VARIABLE: text}, require_log}}
Schema environment_schema();  // {VARIABLE: text}; see variables.h
Environment read_environment(const Node& node);

// One environment of several bundles; UsageError names the cell, the variable and both bundles.
Environment merge_bundles(const std::string& cell, const std::vector<Bundle>& bundles);

bool is_safe_name(const std::string& name);  // letters, digits, '_', '-', inner dots: becomes a folder

// "" or why the bundle cannot change anything here: it repeats what is set already.
std::string no_op_reason(const Bundle& bundle, const Environment& ambient);

}  // namespace faultline::triage
