// `faultline report`: one page from the records of runs, for people who were not there.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/files/file.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "report/record.h"

namespace faultline::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> records;
  std::string out;
};

// Beside a single run that is a folder; in the current folder otherwise.
std::filesystem::path default_output(const ReportOptions& options) {
  const std::filesystem::path first = options.records.front();
  std::error_code ignored;
  return options.records.size() == 1 && std::filesystem::is_directory(first, ignored) ? first / "report.html"
                                                                                      : "report.html";
}

ExitCode write_report(const ReportOptions& options, const Globals& globals) {
  std::vector<report::LoadedRecord> records;
  for (const std::string& path : options.records) records.push_back(report::load_record(path));
  const std::filesystem::path out = options.out.empty() ? default_output(options) : std::filesystem::path(options.out);
  write_file_atomically(out, report::page(records));
  Json runs = Json::array();
  for (const report::Outline& run : report::outline(records)) {
    runs.push_back({{"name", run.name}, {"kind", run.kind}, {"verdict", run.headline}, {"missing", run.missing}});
    if (globals.json || globals.quiet) continue;
    print(fmt::format("{}: {}\n", run.name, run.headline));
    for (const std::string& sentence : run.missing) print(styled(Style::kBad, "  missing: ") + sentence + "\n");
  }
  if (globals.json)
    print_json({{"command", "report"}, {"page", out.string()}, {"runs", runs}});
  else
    print(out.string() + "\n");
  return ExitCode::kOk;
}

}  // namespace

void add_report(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("report", "a self-contained HTML page from the records of one or more runs");
  auto options = std::make_shared<ReportOptions>();
  command
      ->add_option("records", options->records,
                   "run directories, folders of experiments or triages, the JSON file of a race, diagnosis or scan, a "
                   "campaign's .sqlite")
      ->required()
      ->type_name("DIR…");
  command
      ->add_option("-o,--output", options->out,
                   "where the page goes; else DIR/report.html for one run, ./report.html for several")
      ->group("Output")
      ->type_name("FILE");
  command->footer(
      "Examples:\n  faultline report runs/eval-20260131T235959Z-1f2e3d4c\n"
      "  faultline report runs/default-* -o three-runs.html\n\n"
      "The page needs no network and no other file; a record with missing parts is shown, and says what is missing.\n"
      "Global options: see `faultline --help`.");
  command->callback(
      [&run, &globals, options] { run = [&globals, options] { return write_report(*options, globals); }; });
}

}  // namespace faultline::cli
