// What a command's output says about its trial: regular expressions of the recipe, tried on every line. The recipe is
// somebody's input, so an expression is compiled for the matcher whose time grows with the line and the expression
// alone (no back references), and conditions in a language of their own are not evaluated.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/schema.h"

namespace faultline::triage {

enum class OnMatch { kFail, kWarn, kInfo };

struct OutputPattern {
  std::string id, regex;
  OnMatch on_match = OnMatch::kFail;
  bool required = false;  // required_for_pass: a trial without a match is wrong, one with it is not
};

struct OutputMatch {
  std::string id, line;
  OnMatch on_match = OnMatch::kFail;
};

struct OutputScan {
  std::vector<OutputMatch> matches;            // the first line of each pattern
  std::vector<std::string> missing;            // required ones that met no line
  std::map<std::string, std::string> capture;  // named groups
  std::string wrong() const;                   // "" or the sentence of what makes the trial wrong
};

Schema patterns_schema();  // of `custom_patterns:`
std::vector<OutputPattern> read_patterns(const Node& node);
OutputScan scan(const std::vector<OutputPattern>& patterns, std::string_view text);

}  // namespace faultline::triage
