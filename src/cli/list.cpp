// `faultline list`: the names that exist, one line each, straight from the catalogues the parser itself uses.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "base/json.h"
#include "base/schedule/schedule.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/output.h"
#include "numeric/fault.h"
#include "tap/operators.h"
#include "task/task.h"

namespace faultline::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

Rows fault_rows() {
  Rows rows = {{"name", "formula", "summary"}};
  for (const numeric::KindInfo& info : numeric::kind_infos()) rows.push_back({info.name, info.formula, info.summary});
  return rows;
}

Rows format_rows() {
  Rows rows = {{"name", "block", "scale", "element"}};
  for (const numeric::FormatInfo& info : numeric::format_infos())
    rows.push_back({info.name, info.block, info.scale, info.element});
  return rows;
}

Rows schedule_rows() {
  Rows rows = {{"name", "formula"}};
  for (const ScheduleInfo& info : schedule_infos()) rows.push_back({info.name, info.formula});
  return rows;
}

Rows operator_rows() {
  Rows rows = {{"name", "summary", "operators"}};
  for (const tap::Family& family : tap::families())
    rows.push_back(
        {std::string(family.name), std::string(family.summary), fmt::format("{}", fmt::join(family.operators, " "))});
  return rows;
}

std::string problem_counts(const task::TaskInfo& task) {
  if (task.name == "addition")
    return fmt::format("train: {}, test: {}", task::addition("train", 0).size(), task::addition("test", 0).size());
  if (task.name == "arithmetic") return fmt::format("{}: any number", fmt::join(task.splits, ", "));
  try {
    return fmt::format("train: {}, test: {}", task::gsm8k("train").size(), task::gsm8k("test").size());
  } catch (const UsageError&) {
    return "its files are missing";
  }
}

Rows task_rows() {
  Rows rows = {{"name", "problems", "summary"}};
  for (const task::TaskInfo& task : task::task_infos()) rows.push_back({task.name, problem_counts(task), task.summary});
  return rows;
}

const std::vector<std::string>& topic_names() {
  static const std::vector<std::string> topics = {"faults", "formats", "operators", "schedules", "tasks"};
  return topics;
}

ExitCode list(const std::string& topic, const Globals& globals) {
  const std::vector<std::string>& topics = topic_names();
  if (std::find(topics.begin(), topics.end(), topic) == topics.end()) {
    throw UsageError(fmt::format("list: wanted faults, formats, operators, schedules or tasks, got '{}'{}", topic,
                                 did_you_mean(topic, topics)));
  }
  Rows rows = topic == "faults"      ? fault_rows()
              : topic == "formats"   ? format_rows()
              : topic == "operators" ? operator_rows()
              : topic == "tasks"     ? task_rows()
                                     : schedule_rows();
  // Long lists of operators belong into JSON; people want to see what a family is for.
  if (topic == "operators" && !globals.json) {
    for (auto& row : rows) row.pop_back();
  }
  if (globals.json) {
    auto json = Json::array();
    for (std::size_t i = 1; i < rows.size(); ++i) {
      Json entry;
      for (std::size_t column = 0; column < rows[i].size(); ++column) entry[rows[0][column]] = rows[i][column];
      json.push_back(std::move(entry));
    }
    print_json(json);
    return ExitCode::kOk;
  }
  const std::string text = table(rows);
  const std::size_t heading = text.find('\n');
  print(styled(Style::kHeading, text.substr(0, heading)) + text.substr(heading));
  if (!globals.quiet)
    print(topic == "operators" ? "\n`faultline list operators --json` names the operators of each family.\n"
                               : "\n`faultline explain NAME` tells the rest.\n");
  return ExitCode::kOk;
}

}  // namespace

void add_list(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command =
      app.add_subcommand("list", "what exists: fault kinds, number formats, operator families, schedules, tasks");
  auto topic = std::make_shared<std::string>();
  offer(
      command->add_option("topic", *topic, "faults, formats, operators, schedules or tasks")->required()->type_name(""),
      topic_names());
  command->footer(
      "Examples:\n  faultline list faults\n  faultline list formats --json\n\nGlobal options: see `faultline --help`.");
  command->callback([&run, &globals, topic] { run = [&globals, topic] { return list(*topic, globals); }; });
}

}  // namespace faultline::cli
