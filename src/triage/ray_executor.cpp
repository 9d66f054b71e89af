#include "triage/ray_executor.h"

namespace faultline::triage {
namespace {

class Ray : public Executor {
 public:
  explicit Ray(RayCluster& cluster) : cluster_(cluster) {}

  int slots() const override { return cluster_.slots(); }

  TrialResult run(const TrialRequest& request, const std::filesystem::path& folder) override {
    const std::string nonce = write_request(request, folder);
    RemoteTask task;
    task.folder = folder;
    task.arguments = {"race", "--trial", "{folder}"};
    task.wanted = {"response.json"};
    task.variables = request.variables;
    task.processors = request.ranks;
    task.timeout = request.timeout;
    const RemoteEnd end = cluster_.wait(cluster_.start(task));
    TrialResult result;
    if (end.error.empty()) {
      result = read_result({end.status, end.timed_out, end.interrupted}, request.timeout, folder, nonce);
    } else {
      result.severity = "infrastructure_failed";
      result.sentence = end.error;
    }
    result.seconds = end.seconds;
    return result;
  }

 private:
  RayCluster& cluster_;
};

}  // namespace

std::unique_ptr<Executor> ray_executor(RayCluster& cluster) { return std::make_unique<Ray>(cluster); }

}  // namespace faultline::triage
