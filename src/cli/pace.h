// How fast many trials are run, where and for how long: --jobs, --executor and --time-limit, of experiments and of
// campaigns alike.
#pragma once

#include <string>

#include "cli/command.h"

namespace faultline::cli {

struct Pace {
  std::string jobs = "1", time_limit = "0", executor = "local";

  bool changed() const { return jobs != "1" || time_limit != "0" || executor != "local"; }
  bool on_ray() const;  // UsageError where --jobs is given, too
  int job_count() const;
  double seconds() const;  // 0: no limit
};

void add_pace_options(CLI::App& command, Pace& pace, const char* group);

}  // namespace faultline::cli
