#include "cli/pace.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "cli/ray_options.h"

namespace faultline::cli {
namespace {

// "90", "90s", "10m", "1h30m" -> seconds.
double parse_duration(const std::string& option, const std::string& text) {
  double seconds = 0;
  std::string_view rest = text;
  while (!rest.empty()) {
    std::size_t used = 0;
    double value = -1;
    try {
      value = std::stod(std::string(rest), &used);
    } catch (const std::logic_error&) {
      used = 0;
    }
    const std::string_view after = rest.substr(used);
    const char unit = after.empty() ? 's' : after.front();
    const double factor = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
    if (used == 0 || !(value >= 0) || !std::isfinite(value) || factor == 0)
      throw UsageError(fmt::format("{}: a time such as 90, 90s, 10m or 1h30m; got '{}'", option, text));
    seconds += value * factor;
    rest = after.empty() ? after : after.substr(1);
  }
  if (text.empty() || seconds > 1e9)
    throw UsageError(fmt::format("{}: a time such as 90, 90s, 10m or 1h30m; got '{}'", option, text));
  return seconds;
}

}  // namespace

int Pace::job_count() const { return static_cast<int>(parse_count("--jobs", jobs, 1, 64)); }
bool Pace::on_ray() const {
  if (!wants_ray(executor)) return false;
  if (jobs != "1")
    throw UsageError("--jobs counts processes of this machine; a Ray cluster runs as many as it has: leave out one");
  return true;
}
double Pace::seconds() const { return parse_duration("--time-limit", time_limit); }

void add_pace_options(CLI::App& command, Pace& pace, const char* group) {
  command.add_option("--jobs", pace.jobs, "worker processes that share the trials, 1 to 64")
      ->group(group)
      ->type_name("N")
      ->capture_default_str();
  add_executor_option(command, pace.executor, group);
  command
      .add_option("--time-limit", pace.time_limit,
                  "begin no trial later than this (90, 10m, 1h30m), nor a training that would end later "
                  "if it took as long as the longest so far; go on next time; 0: none")
      ->group(group)
      ->type_name("DURATION")
      ->capture_default_str();
}

}  // namespace faultline::cli
