// `faultline convert`: settings of the systems this one follows (verl keys, flags of the dead-zone scripts, environment
// variables) as a recipe. What was understood goes to stdout; what changed its meaning stands above it as comments.
#include "recipe/convert.h"
#include "base/json.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "cli/command.h"
#include "cli/output.h"

namespace faultline::cli {
namespace {

struct ConvertOptions {
  std::vector<std::string> settings;
  std::string command = "0";
  bool environment = false, keys = false;
};

ExitCode list_keys(const Globals& globals) {
  auto json = Json::array();
  std::vector<std::vector<std::string>> rows = {{"key", "becomes"}};
  for (const recipe::ForeignKey& key : recipe::foreign_keys()) {
    rows.push_back({std::string(key.name), std::string(key.becomes)});
    json.push_back({{"key", std::string(key.name)}, {"becomes", std::string(key.becomes)}});
  }
  globals.json ? print_json(json) : print(table(rows));
  return ExitCode::kOk;
}

bool is_setting(const std::string& text) { return text.find('=') != std::string::npos || text.starts_with("--"); }
bool is_config(const std::string& text) {
  return !is_setting(text) && (text.ends_with(".yaml") || text.ends_with(".yml") || text.ends_with(".json"));
}
bool is_script(const std::string& text) { return !is_setting(text) && text.ends_with(".sh"); }

// Files and scripts with their arguments first, then what stands beside them.
std::vector<recipe::ForeignSetting> read_settings(const ConvertOptions& options) {
  std::vector<recipe::ForeignSetting> settings;
  std::vector<std::string> rest;
  const auto take = [&](std::vector<recipe::ForeignSetting> more) {
    settings.insert(settings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  for (std::size_t i = 0; i < options.settings.size(); ++i) {
    const std::string& text = options.settings[i];
    if (is_config(text)) {
      take(recipe::settings_of_file(load_config(text)));
    } else if (is_script(text)) {
      std::vector<std::string> arguments;
      while (i + 1 < options.settings.size() && !is_setting(options.settings[i + 1]) &&
             !is_config(options.settings[i + 1]))
        arguments.push_back(options.settings[++i]);
      take(recipe::settings_of_script(text, arguments,
                                      static_cast<int>(parse_count("--command", options.command, 0, 1000))));
    } else {
      rest.push_back(text);
    }
  }
  take(recipe::settings_of_arguments(rest));
  if (options.environment) take(recipe::settings_of_environment());
  return settings;
}

ExitCode convert(const ConvertOptions& options, const Globals& globals) {
  if (options.keys) return list_keys(globals);
  const std::vector<recipe::ForeignSetting> settings = read_settings(options);
  if (settings.empty()) throw UsageError("give a file, key=value, or --environment; see `faultline convert --help`");
  const recipe::Conversion conversion = recipe::convert_settings(settings);
  if (globals.json) {
    print_json({{"recipe", to_json(conversion.recipe)},
                {"notes", conversion.notes},
                {"left_to_verl", conversion.left},
                {"command", conversion.command}});
    return ExitCode::kOk;
  }
  std::string text = fmt::format("# faultline {} RECIPE\n", conversion.command);
  for (const std::string& note : conversion.notes) text += "# " + note + "\n";
  if (!conversion.left.empty())
    text += fmt::format("# left to verl: {} of its keys, which say nothing about faults\n", conversion.left.size());
  print(text + to_yaml(conversion.recipe));
  return ExitCode::kOk;
}

}  // namespace

void add_convert(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("convert", "keys and flags of other systems as a recipe");
  auto options = std::make_shared<ConvertOptions>();
  command
      ->add_option("settings", options->settings,
                   "YAML or JSON files, launch scripts with their arguments, key=value; flags after --")
      ->type_name("");
  command->add_option("--command", options->command, "which command of a script that runs several, from 1")
      ->type_name("N");
  command->add_flag("--environment", options->environment, "VERL_NOISY_OPS_* of this environment, too");
  command->add_flag("--keys", options->keys, "list the keys that are known, and what they become");
  command->footer(
      "Examples:\n  faultline convert trainer.noisy_ops.enabled=True trainer.noisy_ops.error_scale=0.05 > recipe.yaml\n"
      "  faultline convert verl_config.yaml --json\n"
      "  faultline convert test_noisy_ops_a100.sh 5e-2 8 > recipe.yaml     # read, not run\n"
      "  faultline convert -- --deadzone_enabled --deadzone_layer 15 --deadzone_threshold 0.04\n\n"
      "A key about faults that is not known is refused with the nearest; keys of verl that say nothing about faults "
      "are\n"
      "counted and left to verl. Exit codes: 0 done, 64 usage.\n"
      "Global options: see `faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return convert(*options, globals); }; });
}

}  // namespace faultline::cli
