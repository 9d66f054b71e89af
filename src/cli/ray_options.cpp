#include "cli/ray_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>

#include "base/error.h"

namespace faultline::cli {

void add_executor_option(CLI::App& command, std::string& executor, const char* group) {
  offer(command.add_option("--executor", executor, "where trials run: local, or ray: as tasks of a cluster")
            ->group(group)
            ->capture_default_str()
            ->type_name("NAME"),
        {"local", "ray"});
}

bool wants_ray(const std::string& executor) {
  if (executor != "local" && executor != "ray")
    throw UsageError(fmt::format("--executor: wanted local or ray, got '{}'", executor));
  return executor == "ray";
}

// A task without num_gpus sees none, or all of them the first.
void refuse_gpus_on_ray(const std::string& device) {
  if (device != "cpu")
    throw UsageError(
        "--executor ray: its tasks ask for processors, not for GPUs; use --device cpu, or --executor local");
}

std::filesystem::path own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

const std::atomic<bool>* interruption() {
  static std::atomic<bool> interrupted{false};
  const auto note = [](int) { interrupted = true; };
  std::signal(SIGINT, note);
  std::signal(SIGTERM, note);
  return &interrupted;
}

std::unique_ptr<RayCluster> open_ray() {
  const char* wish = std::getenv("FAULTLINE_PYTHON");
  return std::make_unique<RayCluster>(own_program(), wish != nullptr && *wish != '\0' ? wish : "python3",
                                      interruption());
}

void fail_without_answer(const RemoteEnd& end) {
  throw RuntimeFailure(end.interrupted ? "interrupted; what was finished is kept, the same command goes on"
                                       : end.error);
}

std::string lost_sentence(const RayCluster& cluster) {
  return fmt::format("on {} machines; {} lost workers, whose trials were run again\n", cluster.nodes(), cluster.lost());
}

}  // namespace faultline::cli
