// `faultline schema`: what an editor needs to complete and check a recipe while it is typed.
#include <CLI/CLI.hpp>

#include "base/json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "recipe/recipe.h"

namespace faultline::cli {

void add_schema(CLI::App& app, const Globals&, Run& run) {
  CLI::App* command = app.add_subcommand("schema", "the JSON Schema of recipes, for editors");
  command->footer(
      "Examples:\n  faultline schema > faultline.schema.json\n"
      "  faultline schema | python3 -c 'import json, sys; print(*json.load(sys.stdin)[\"properties\"])'\n\n"
      "Global options: see `faultline --help`.");
  command->callback([&run] {
    run = [] {
      print_json(json_schema(recipe::recipe_schema(), "Faultline recipe"));
      return ExitCode::kOk;
    };
  });
}

}  // namespace faultline::cli
