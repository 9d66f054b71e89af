// `faultline explain NAME`: everything about one fault kind, number format, schedule or task. Parameters and ranges
// come from the schemas that check recipes, and the YAML is the short form's own expansion, so neither can go stale.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/config/schema_data.h"
#include "base/json.h"
#include "base/schedule/schedule.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/output.h"
#include "numeric/rule.h"
#include "task/task.h"

namespace faultline::cli {
namespace {

std::string example_yaml(const std::string& short_form, const std::string& name) {
  Node rule = Node::map();
  rule.set("name", name);
  Node expanded = numeric::expand_short_form(short_form);
  if (!expanded.find("where")) {  // a recipe must say it, the short form for `apply` must not
    expanded.set("where", Node::map());
    expanded.find("where")->set("operator", "matmul");
  }
  for (const char* section : {"where", "what", "extent", "lifetime"}) {
    if (const Node* node = expanded.find(section)) rule.set(section, *node);
  }
  return to_yaml(rule);
}

Json parameter_json(const numeric::ParameterInfo& info) {
  return {{"name", info.name},
          {"type", describe(info.schema)},
          {"required", info.required},
          {"default", info.default_value ? to_json(*info.default_value) : Json()},
          {"meaning", info.meaning}};
}

Json explain_fault(const numeric::KindInfo& info) {
  Json json = {{"name", info.name}, {"is", "fault"}, {"summary", info.summary}, {"formula", info.formula}};
  json["parameters"] = Json::array();
  for (const numeric::ParameterInfo& parameter : info.parameters)
    json["parameters"].push_back(parameter_json(parameter));
  json["short_form"] = info.example;
  json["yaml"] = example_yaml(info.example, "my_" + info.name);
  json["note"] = info.note;
  return json;
}

// The parameters of `quantize` that this format takes.
bool takes(const numeric::FormatInfo& format, const std::string& parameter) {
  using numeric::FormatFamily;
  const bool integer = format.family == FormatFamily::kInteger, bfp = format.family == FormatFamily::kBfp;
  if (parameter == "format") return false;
  if (parameter == "granularity") return integer || format.family == FormatFamily::kFp8;
  if (parameter == "block") return integer || bfp;
  if (parameter == "bits") return bfp;
  if (parameter == "scheme") return integer;
  if (parameter == "scale_floor") return format.format.scale == numeric::ScaleRule::kNarrow;
  if (parameter == "rounding") return format.format.element != numeric::ElementRule::kLevels;
  return true;
}

Json explain_format(const numeric::FormatInfo& info) {
  const numeric::KindInfo& quantize = numeric::kind_info(numeric::FaultKind::kQuantize);
  Json json = {{"name", info.name}, {"is", "format"}, {"summary", quantize.summary}, {"formula", quantize.formula}};
  json["block"] = info.block;
  json["scale"] = info.scale;
  json["element"] = info.element;
  if (!info.follows.empty()) json["follows"] = info.follows;
  json["parameters"] = Json::array();
  for (const numeric::ParameterInfo& parameter : quantize.parameters) {
    if (takes(info, parameter.name)) json["parameters"].push_back(parameter_json(parameter));
  }
  const std::string example = fmt::format("quantize(format={}) @ operator=matmul,surface=weight", info.name);
  json["short_form"] = example;
  json["yaml"] = example_yaml(example, "my_" + info.name);
  json["note"] = info.block == "-" ? "" : quantize.note;
  return json;
}

Json explain_schedule(const ScheduleInfo& info) {
  Json json = {{"name", info.name}, {"is", "schedule"}, {"summary", "strength by step"}, {"formula", info.formula}};
  json["parameters"] = Json::array();
  for (const ScheduleParameter& parameter : info.parameters) {
    json["parameters"].push_back(
        {{"name", parameter.name},
         {"type", parameter.type + ", " + parameter.range},
         {"required", parameter.default_value == "none"},
         {"default", parameter.default_value == "none" ? Json() : Json(parameter.default_value)},
         {"meaning", parameter.meaning}});
  }
  json["short_form"] = info.example;
  Node schedule = Node::map();
  schedule.set("schedule", parse_yaml(info.example, "example"));
  json["yaml"] = to_yaml(schedule);
  json["note"] = "";
  return json;
}

Json explain_task(const task::TaskInfo& info) {
  Json json = {{"name", info.name}, {"is", "task"}, {"summary", info.summary}};
  json["formula"] = "reward 1 if the last '#### N' of the response's last 300 characters is the answer, else 0";
  json["parameters"] = Json::array();
  for (const SchemaField& field : info.options.data().fields) {
    json["parameters"].push_back(parameter_json(
        {field.name, field.schema, field.options.default_value, field.options.doc, field.options.required}));
  }
  json["short_form"] = fmt::format("task: {{name: {}}}", info.name);
  json["yaml"] = to_yaml(parse_yaml(json["short_form"].get<std::string>(), "example"));
  json["note"] = info.note;
  return json;
}

std::vector<std::string> known_names() {
  std::vector<std::string> known;
  for (const numeric::KindInfo& info : numeric::kind_infos()) known.push_back(info.name);
  for (const numeric::FormatInfo& info : numeric::format_infos()) known.push_back(info.name);
  for (const ScheduleInfo& info : schedule_infos()) known.push_back(info.name);
  for (const task::TaskInfo& info : task::task_infos()) known.push_back(info.name);
  return known;
}

Json find_entry(const std::string& name) {
  for (const numeric::KindInfo& info : numeric::kind_infos()) {
    if (info.name == name) return explain_fault(info);
  }
  for (const numeric::FormatInfo& info : numeric::format_infos()) {
    if (info.name == name) return explain_format(info);
  }
  for (const ScheduleInfo& info : schedule_infos()) {
    if (info.name == name) return explain_schedule(info);
  }
  for (const task::TaskInfo& info : task::task_infos()) {
    if (info.name == name) return explain_task(info);
  }
  const std::string hint = did_you_mean(name, known_names());
  throw UsageError(fmt::format(
      "no fault, format, schedule or task is called {}{}", describe_text(name),
      hint.empty() ? "; see `faultline list faults`, `list formats`, `list schedules`, `list tasks`" : hint));
}

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (std::size_t i = 0; i < text.size(); ++i) {
    result += text[i];
    if (text[i] == '\n' && i + 1 < text.size()) result += "  ";
  }
  return result;
}

std::string entry_text(const Json& entry) {
  const auto word = [&](const char* key) { return entry[key].get<std::string>(); };
  std::string text = fmt::format("{} ({}): {}\n  {}\n", styled(Style::kHeading, word("name")), word("is"),
                                 word("summary"), word("formula"));
  if (entry.contains("block")) {
    text += fmt::format("  block: {}; scale: {}; element: {}\n", word("block"), word("scale"), word("element"));
    if (entry.contains("follows")) text += fmt::format("  follows: {}\n", word("follows"));
  }
  text += "\n" + styled(Style::kHeading, "Parameters") + "\n";
  std::vector<std::vector<std::string>> rows;
  for (const Json& parameter : entry["parameters"]) {
    const Json& value = parameter["default"];
    const std::string fallback =
        value.is_null() ? "" : "default " + (value.is_string() ? value.get<std::string>() : value.dump());
    rows.push_back({"  " + parameter["name"].get<std::string>(),
                    parameter["required"].get<bool>() ? "required" : fallback, parameter["type"],
                    parameter["meaning"]});
  }
  text += rows.empty() ? "  none\n" : table(rows);
  text += fmt::format(
      "\n{}\n{}\n{}\n  {}\n", styled(Style::kHeading, "In a recipe"), indented(word("yaml")),
      styled(Style::kHeading, entry["is"] == "schedule" || entry["is"] == "task" ? "In one line" : "Short form"),
      word("short_form"));
  if (!word("note").empty()) text += "\n" + word("note") + "\n";
  return text;
}

}  // namespace

void add_explain(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("explain", "formula, parameters with ranges and an example of one name");
  auto name = std::make_shared<std::string>();
  offer(command->add_option("name", *name, "a fault kind, number format, schedule or task")->required()->type_name(""),
        known_names());
  command->footer(
      "Examples:\n  faultline explain deadzone\n  faultline explain nvfp4 --json\n\n"
      "Global options: see `faultline --help`.");
  command->callback([&run, &globals, name] {
    run = [&globals, name] {
      const Json entry = find_entry(*name);
      if (globals.json) {
        print_json(entry);
      } else {
        print(entry_text(entry));
      }
      return ExitCode::kOk;
    };
  });
}

}  // namespace faultline::cli
