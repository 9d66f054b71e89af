// Where trials run, how many at a time and for how long: --executor, --jobs and --time-limit, of experiments, campaigns
// and triages alike.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/command.h"
#include "race/launch.h"
#include "trials/runner.h"

namespace faultline::cli {

struct Pace {
  std::string jobs = "1", time_limit = "0", executor = "local";

  bool changed() const { return jobs != "1" || time_limit != "0" || executor != "local"; }
  bool on_ray() const;  // UsageError where --jobs is given, too
  int job_count() const;
  double seconds() const;  // 0: no limit
};

// Who starts the ranks of a race: --launcher, --hosts and --address, of races and triages alike.
struct LaunchOptions {
  std::string launcher = "local", hosts, address;

  bool given() const { return launcher != "local" || !hosts.empty() || !address.empty(); }
  race::Launch launch() const { return race::typed_launch(launcher, hosts, address); }
};
void add_launch_options(CLI::App& command, LaunchOptions& options, const char* group);

void add_pace_options(CLI::App& command, Pace& pace, const char* group);
void add_executor_option(CLI::App& command, std::string& executor, const char* group);
void refuse_gpus_on_ray(const std::string& device);

// What was asked for: a Ray cluster, or this machine. One job is this process itself, where `serve` can run a trial
// here.
std::unique_ptr<trials::Executor> open_executor(const Pace& pace,
                                                std::function<std::string(const std::string& line)> serve = {});

// For records and for people: {} and "" where there was no cluster.
Json cluster_json(const trials::Executor& executor, int64_t lost);
std::string cluster_sentence(const Json& cluster);

// Ends a command that Ctrl-C has ended: what is kept, and how to go on.
[[noreturn]] void end_interrupted(int64_t done, const std::string& kept_in);

}  // namespace faultline::cli
