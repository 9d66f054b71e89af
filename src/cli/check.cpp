// `faultline check`: a recipe without running it, printed as a run would see it, overrides applied and every default
// written out.
#include <CLI/CLI.hpp>

#include "base/json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "recipe/recipe.h"

namespace faultline::cli {
namespace {

struct CheckOptions {
  std::string recipe;
  std::vector<std::string> overrides;
};

ExitCode check(const CheckOptions& options, const Globals& globals) {
  const Node recipe = recipe::load_recipe(options.recipe, options.overrides);
  if (globals.json) {
    print_json(to_json(recipe));
  } else {
    print(to_yaml(recipe));
  }
  return ExitCode::kOk;
}

}  // namespace

void add_check(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("check", "validate a recipe and print it with every default written out");
  auto options = std::make_shared<CheckOptions>();
  command->add_option("recipe", options->recipe, "the YAML or JSON file")->required()->type_name("FILE");
  command->add_option("overrides", options->overrides, "a.b=v changes, +a.b=v adds, ~a.b removes")->type_name("");
  command->footer(
      "Examples:\n  faultline check recipes/example.yaml\n"
      "  faultline check recipes/example.yaml seed=8 'faults[0].what.strength=0.1' --json\n\n"
      "Global options: see `faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return check(*options, globals); }; });
}

}  // namespace faultline::cli
