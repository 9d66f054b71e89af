// What the commands share: the global options, and how a command takes part. Each command adds itself to the parser
// and, when it is the one that was typed, leaves behind what is to run; main alone turns its result or exception into
// an exit code.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace faultline::cli {

struct Globals {
  bool json = false;
  bool quiet = false;
  std::string seed_text = "0";
  std::string device = "cpu";
  std::string color = "auto";
  std::vector<std::string> arguments;  // as typed, without the program's name
  std::vector<std::string> command;    // of `triage run` and `triage bisect`: what stands behind --

  uint64_t seed() const;  // UsageError unless 0 … 2^64 - 1
};

using Run = std::function<ExitCode()>;

void add_list(CLI::App& app, const Globals& globals, Run& run);
void add_explain(CLI::App& app, const Globals& globals, Run& run);
void add_apply(CLI::App& app, const Globals& globals, Run& run);
void add_demo(CLI::App& app, const Globals& globals, Run& run);
void add_selftest(CLI::App& app, const Globals& globals, Run& run);
void add_check(CLI::App& app, const Globals& globals, Run& run);
void add_generate(CLI::App& app, const Globals& globals, Run& run);
void add_eval(CLI::App& app, const Globals& globals, Run& run);
void add_census(CLI::App& app, const Globals& globals, Run& run);
void add_diagnose(CLI::App& app, const Globals& globals, Run& run);
void add_screen(CLI::App& app, const Globals& globals, Run& run);
void add_scan(CLI::App& app, const Globals& globals, Run& run);
void add_compare(CLI::App& app, const Globals& globals, Run& run);
void add_run(CLI::App& app, const Globals& globals, Run& run);
void add_train(CLI::App& app, const Globals& globals, Run& run);
void add_report(CLI::App& app, const Globals& globals, Run& run);
void add_schema(CLI::App& app, const Globals& globals, Run& run);
void add_convert(CLI::App& app, const Globals& globals, Run& run);
void add_convert_model(CLI::App& app, const Globals& globals, Run& run);
void add_race(CLI::App& app, const Globals& globals, Run& run);
void add_triage(CLI::App& app, const Globals& globals, Run& run);
void add_completion(CLI::App& app, const Globals& globals, Run& run);

ExitCode print_version(const Globals& globals);

// What a shell may offer as this option's value; see `faultline completion`. Words that hold a parenthesis are offered
// once one has been typed.
void offer(const CLI::Option* option, std::vector<std::string> words);

// Numbers from the command line: the whole text, or a UsageError that names the option and its range.
uint64_t parse_count(std::string_view option, std::string_view text, uint64_t min, uint64_t max);
double parse_number(std::string_view option, std::string_view text, double min, double max);

}  // namespace faultline::cli
