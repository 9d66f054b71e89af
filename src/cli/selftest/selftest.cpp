// `faultline selftest`: runs the checks one by one, a line each, and ends with a count. A check that throws has failed.
#include "cli/selftest/selftest.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/output.h"

namespace faultline::cli {
namespace {

std::string run_check(const Check& check) {
  try {
    return check.run();
  } catch (const std::exception& error) {
    return fmt::format("threw: {}", error.what());
  }
}

std::vector<Check> all_checks(const SelftestOptions& options) {
  std::vector<Check> checks;
  for (const auto make : {fault_checks, format_checks, evidence_checks, device_checks, portable_checks}) {
    for (Check& check : make(options)) checks.push_back(std::move(check));
  }
  return checks;
}

ExitCode selftest(const Globals& globals, bool quick) {
  using Clock = std::chrono::steady_clock;
  const SelftestOptions options{open_device(globals.device), quick, globals.seed()};
  const auto start = Clock::now();
  auto json = Json::array();
  int passed = 0, failed = 0;
  for (const Check& check : all_checks(options)) {
    const auto begin = Clock::now();
    const std::string complaint = run_check(check);
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    const bool ok = complaint.empty();
    ok ? ++passed : ++failed;
    json.push_back({{"name", check.name}, {"ok", ok}, {"complaint", complaint}, {"seconds", took}});
    if (globals.json || (ok && globals.quiet)) continue;
    const std::string mark = ok ? styled(Style::kGood, "ok  ") : styled(Style::kBad, "FAIL");
    print(fmt::format("{}  {}{}{}\n", mark, check.name, ok ? "" : ": ", complaint));
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (globals.json) {
    print_json({{"command", "selftest"},
                {"device", options.device.str()},
                {"seed", options.seed},
                {"passed", passed},
                {"failed", failed},
                {"seconds", seconds},
                {"checks", json}});
  } else {
    print(fmt::format("{} passed, {} failed on {} in {} (seed {})\n", passed, failed, options.device.str(),
                      format_duration(seconds), options.seed));
  }
  return failed == 0 ? ExitCode::kOk : ExitCode::kFound;
}

}  // namespace

void add_selftest(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command =
      app.add_subcommand("selftest", "planted faults found, clean data silent, kernels exact; exits 1 on any miss");
  auto quick = std::make_shared<bool>(false);
  command->add_flag("--quick", *quick, "fewer repetitions: some seconds")->group("Run");
  command->footer(
      "Examples:\n  faultline selftest\n  faultline selftest --device cuda --json\n\n"
      "Global options: see `faultline --help`.");
  command->callback([&run, &globals, quick] { run = [&globals, quick] { return selftest(globals, *quick); }; });
}

}  // namespace faultline::cli
