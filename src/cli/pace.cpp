#include "cli/pace.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "trials/ray_executor.h"

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

bool wants_ray(const std::string& executor) {
  if (executor != "local" && executor != "ray")
    throw UsageError(fmt::format("--executor: wanted local or ray, got '{}'", executor));
  return executor == "ray";
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
                  "stop after this time (90, 10m, 1h30m; 0: no limit): trials that run are finished, no new one is "
                  "begun, nor a training that would end later if it took as long as the longest so far. What is done "
                  "is kept; the same command goes on from there")
      ->group(group)
      ->type_name("DURATION")
      ->capture_default_str();
}

void add_executor_option(CLI::App& command, std::string& executor, const char* group) {
  offer(command.add_option("--executor", executor, "where trials run: local, or ray: as tasks of a cluster")
            ->group(group)
            ->capture_default_str()
            ->type_name("NAME"),
        {"local", "ray"});
}

void add_launch_options(CLI::App& command, LaunchOptions& options, const char* group) {
  command
      .add_option("--launcher", options.launcher,
                  "who starts ranks that are processes: local, ssh, srun, mpirun, torchrun, or a command line with "
                  "{command}, or {quoted} for a shell, and {host}, {rank}, {ranks}, {nodes}, {hosts}, {per_host}")
      ->group(group)
      ->capture_default_str()
      ->type_name("NAME");
  command.add_option("--hosts", options.hosts, "machines for the ranks, which are given to them in blocks")
      ->group(group)
      ->type_name("A,B,…");
  command
      .add_option("--address", options.address, "of this machine, for the ranks; default: as seen from the first host")
      ->group(group)
      ->type_name("IP");
}

// A task without num_gpus sees none, or all of them the first.
void refuse_gpus_on_ray(const std::string& device) {
  if (device != "cpu")
    throw UsageError(
        "--executor ray: its tasks ask for processors, not for GPUs; use --device cpu, or --executor local");
}

std::unique_ptr<trials::Executor> open_executor(const Pace& pace,
                                                std::function<std::string(const std::string& line)> serve) {
  if (pace.on_ray()) return trials::ray_executor();
  const int jobs = pace.job_count();
  return jobs == 1 && serve ? trials::in_process_executor(std::move(serve)) : trials::local_executor(jobs);
}

Json cluster_json(const trials::Executor& executor, int64_t lost) {
  Json json = executor.description();
  if (!json.is_null()) json["lost"] = lost;
  return json;
}

std::string cluster_sentence(const Json& cluster) {
  if (cluster.is_null()) return "";
  return fmt::format("on {} machines; {} trials were lost with their worker and run again\n",
                     cluster["nodes"].get<int64_t>(), cluster["lost"].get<int64_t>());
}

void end_interrupted(int64_t done, const std::string& kept_in) {
  throw RuntimeFailure(
      fmt::format("interrupted; {} trials of this call are kept in {}, and the same command goes on", done, kept_in));
}

}  // namespace faultline::cli
