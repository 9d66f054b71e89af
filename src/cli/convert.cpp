// `faultline convert`: settings of the systems this one follows (verl keys, flags of the dead-zone scripts, environment
// variables) as a recipe. What was understood goes to stdout; what changed its meaning stands above it as comments.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/output.h"
#include "recipe/convert.h"

namespace faultline::cli {
namespace {

struct ConvertOptions {
  std::vector<std::string> settings;
  bool environment = false, keys = false;
};

ExitCode list_keys(const Globals& globals) {
  auto json = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows = {{"key", "becomes"}};
  for (const ForeignKey& key : foreign_keys()) {
    rows.push_back({std::string(key.name), std::string(key.becomes)});
    json.push_back({{"key", std::string(key.name)}, {"becomes", std::string(key.becomes)}});
  }
  globals.json ? print_json(json) : print(table(rows));
  return ExitCode::kOk;
}

// Files first, then what stands after them.
std::vector<ForeignSetting> read_settings(const ConvertOptions& options) {
  std::vector<ForeignSetting> settings;
  std::vector<std::string> rest;
  for (const std::string& text : options.settings) {
    const bool is_file = text.find('=') == std::string::npos && !text.starts_with("--") &&
                         (text.ends_with(".yaml") || text.ends_with(".yml") || text.ends_with(".json"));
    if (is_file) {
      for (ForeignSetting& setting : settings_of_file(load_config(text))) settings.push_back(std::move(setting));
    } else {
      rest.push_back(text);
    }
  }
  for (ForeignSetting& setting : settings_of_arguments(rest)) settings.push_back(std::move(setting));
  if (options.environment)
    for (ForeignSetting& setting : settings_of_environment()) settings.push_back(std::move(setting));
  return settings;
}

ExitCode convert(const ConvertOptions& options, const Globals& globals) {
  if (options.keys) return list_keys(globals);
  const std::vector<ForeignSetting> settings = read_settings(options);
  if (settings.empty()) throw UsageError("give a file, key=value, or --environment; see `faultline convert --help`");
  const Conversion conversion = convert_settings(settings);
  if (globals.json) {
    print_json(
        {{"recipe", to_json(conversion.recipe)}, {"notes", conversion.notes}, {"left_to_verl", conversion.left}});
    return ExitCode::kOk;
  }
  std::string text;
  for (const std::string& note : conversion.notes) text += "# " + note + "\n";
  if (!conversion.left.empty())
    text += fmt::format("# left to verl: {} keys that say nothing about faults\n", conversion.left.size());
  print(text + to_yaml(conversion.recipe));
  return ExitCode::kOk;
}

}  // namespace

void add_convert(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("convert", "keys and flags of other systems as a recipe");
  auto options = std::make_shared<ConvertOptions>();
  command->add_option("settings", options->settings, "YAML or JSON files, key=value; flags after --")->type_name("");
  command->add_flag("--environment", options->environment, "VERL_NOISY_OPS_* of this environment, too");
  command->add_flag("--keys", options->keys, "list the keys that are known, and what they become");
  command->footer(
      "Examples:\n  faultline convert trainer.noisy_ops.enabled=True trainer.noisy_ops.error_scale=0.05 > recipe.yaml\n"
      "  faultline convert verl_config.yaml --json\n"
      "  faultline convert -- --deadzone_enabled --deadzone_layer 15 --deadzone_threshold 0.04\n\n"
      "A key about faults that is not known is refused with the nearest; keys of verl that say nothing about faults "
      "are\n"
      "counted and left to verl. Exit codes: 0 done, 64 usage.\n"
      "Global options: see `faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return convert(*options, globals); }; });
}

}  // namespace faultline::cli
