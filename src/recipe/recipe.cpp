#include "recipe/recipe.h"

#include <fmt/format.h>

#include <set>

#include "base/config/override.h"
#include "base/files/file.h"

namespace faultline::recipe {
namespace {

// A rule's name is part of its random identity: two rules of one name would draw the same numbers.
std::string check_names(const Node& faults) {
  std::set<std::string> seen;
  for (const Node& rule : faults.items()) {
    const std::string& name = rule.at("name").as_string();
    if (!seen.insert(name).second) return fmt::format("two rules are named '{}'; names must differ", name);
  }
  return "";
}

}  // namespace

void register_plan_sections() {
  SectionRegistry& registry = SectionRegistry::global();
  registry.add("model", Schema::string({.min = 1}),
               {.default_value = Node("default"), .doc = "a folder, a .gguf file, or default"});
  registry.add("seed", Schema::integer({.min = 0}),
               {.default_value = Node(0), .doc = "every random number follows from it"});
  registry.add("phases", numeric::phases_schema(), {.doc = "in which phases the faults act"});
  registry.add("faults", Schema::list(numeric::rule_schema(numeric::RuleUse::kInPlan)).check(check_names),
               {.default_value = Node::list(), .doc = "the rules, in the order in which they apply at a site"});
  // Without a default: a recipe that does not name it is, to the hash, the recipe that it was.
  registry.add("allow_partial", Schema::list(Schema::string({.min = 1})),
               {.doc = "sites that may stay silent or half-faulted; the report says so first"});
}

Schema recipe_schema() { return SectionRegistry::global().recipe_schema(); }

Node read_recipe(const Node& given, std::span<const std::string> overrides) {
  const Schema schema = recipe_schema();
  const Node recipe = validate(apply_overrides(given, overrides, &schema), schema);
  (void)read_plan_spec(recipe);
  return recipe;
}

Node load_recipe_file(const std::filesystem::path& path) {
  const std::string file = path.string();
  if (const std::string format = tensor_file_format(path); !format.empty())
    throw UsageError(
        fmt::format("{0}: this is a model or its tensors ({1}), not a recipe; a recipe names it as `model: {0}`, and "
                    "commands without a recipe take it as --model {0}",
                    file, format));
  Node config = load_config(path);
  if (config.find("verdict") != nullptr && config.find("candidates") != nullptr)
    throw UsageError(
        fmt::format("{0}: this is a verdict, not a recipe; read it with `faultline report {0}`; a training recipe uses "
                    "it as `aqn: {{layers: {{from_verdict: {0}}}}}`",
                    file));
  if (config.find("made_by") != nullptr)
    throw UsageError(fmt::format(
        "{0}: this is a result that faultline wrote, not a recipe; read it with `faultline report {0}`", file));
  if (config.find("seal") != nullptr)
    throw UsageError(
        fmt::format("{}: this is part of a run's record, not a recipe; read the run with `faultline report {}`", file,
                    path.has_parent_path() ? path.parent_path().string() : "."));
  return config;
}

Node load_recipe(const std::filesystem::path& path, std::span<const std::string> overrides) {
  return read_recipe(load_recipe_file(path), overrides);
}
Node parse_recipe(std::string_view text, std::span<const std::string> overrides) {
  return read_recipe(parse_yaml(text, "recipe"), overrides);
}

}  // namespace faultline::recipe
