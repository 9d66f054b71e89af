// Families of operators: a built-in table, and what a recipe's section `operators:` or a file adds for a backend with
// operators of its own. What is added goes before the table, so that a user's word counts. One table is in use in a
// process, that of the plan that was made or armed last: a family is a part of a site's random identity, and must mean
// the same to census, plan and evidence.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/schema.h"

namespace faultline::tap {

struct Family {
  std::string_view name;
  std::string_view summary;
  std::vector<std::string_view> operators;   // base names and globs
  std::vector<std::string_view> added = {};  // those of them that are not built in
};
std::span<const Family> families();  // all_ops and every among them, last. Good for as long as the process lives
const Family* family_named(std::string_view name);  // null: there is none

// The family of a base name other than all_ops and every; "" if none.
std::string_view family_of(std::string_view base);
bool is_of_family(const Family& family, std::string_view base);  // of all_ops where its family is one of those

using OperatorNames = std::map<std::string, std::vector<std::string>>;  // family -> base names and globs
void register_operators_section();                                      // of the recipe's schema; once
OperatorNames read_operators(const Node& section);  // validated, or null; reads its file. Throws UsageError
void use_operators(const OperatorNames& names);

bool glob_matches(std::string_view pattern, std::string_view text);  // * and ?

}  // namespace faultline::tap
