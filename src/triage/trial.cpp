#include "triage/trial.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <random>

#include "base/files/file.h"
#include "base/machine.h"
#include "base/text.h"
#include "record/document.h"
#include "record/environment.h"
#include "triage/command_trial.h"

namespace faultline::triage {
namespace {

constexpr std::size_t kMaxAnswer = std::size_t{1} << 30;
constexpr std::size_t kMaxWords = 300;

std::string fresh_nonce() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", source(), source(), source(), source());
}

std::string how_it_ended(const trials::TaskEnd& end, double timeout) {
  if (end.timed_out) return fmt::format("took longer than {} s and was ended", timeout);
  if (!end.error.empty() || end.interrupted) return end.sentence();
  if (WIFSIGNALED(end.status)) return fmt::format("ended by signal {}", WTERMSIG(end.status));
  return fmt::format("exited with status {} and no answer", WEXITSTATUS(end.status));
}

TrialResult without_answer(const AskedTrial& trial, const trials::TaskEnd& end) {
  TrialResult result;
  const bool of_the_machine = end.timed_out || !end.error.empty();
  result.outcome = end.timed_out ? "hang" : "did_not_run";
  result.severity = of_the_machine ? "infrastructure_failed" : "setup_failed";
  result.sentence = how_it_ended(end, trial.request.timeout);
  if (const std::string words = trials::error_line(trial.folder); !words.empty())
    result.sentence += ": " + words.substr(0, kMaxWords);
  return result;
}

}  // namespace

std::string TrialRequest::fingerprint() const {
  Json decides = {{"cell", cell},           {"index", index},   {"seed", std::to_string(seed)}, {"ranks", ranks},
                  {"transport", transport}, {"device", device}, {"variables", variables},       {"config", config}};
  if (!launch.is_local()) decides["launcher"] = race::to_json(launch);
  if (python) decides["python"] = race::to_json(*python);
  if (!command.empty()) decides["command"] = command, decides["patterns"] = patterns;
  if (!rules.empty()) decides["rules"] = rules;
  return record::json_hash(decides);
}

TrialRequest make_request(const Plan& plan, const Cell& cell, int64_t index) {
  TrialRequest request;
  request.cell = cell.name;
  request.index = index;
  request.seed = mix64(mix64(plan.seed, hash64(cell.name)), static_cast<uint64_t>(index));
  request.ranks = plan.ranks;
  request.transport = plan.transport;
  request.device = plan.device;
  request.variables = cell.variables;
  request.launch = plan.launch;
  request.python = plan.python;
  request.config = faultline::to_json(cell.config);
  request.timeout = plan.timeout_per_trial;
  request.command = plan.command;
  request.patterns = plan.patterns_as_given;
  request.rules = plan.rules_as_given;
  request.environment_file = plan.environment_file;
  return request;
}

AskedTrial ask(TrialRequest request, const std::filesystem::path& folder) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  AskedTrial trial{std::move(request), folder, fresh_nonce(), system_seconds()};
  const TrialRequest& asked = trial.request;
  Json json = {{"nonce", trial.nonce},
               {"config", asked.config},
               {"seed", std::to_string(asked.seed)},
               {"ranks", asked.ranks},
               {"transport", asked.transport},
               {"device", asked.device},
               {"launcher", race::to_json(asked.launch)},
               {"variables", asked.variables}};
  if (asked.python) json["python"] = race::to_json(*asked.python);
  if (!asked.command.empty())
    json = {{"nonce", trial.nonce},    {"command", asked.command},     {"patterns", asked.patterns},
            {"rules", asked.rules},    {"variables", asked.variables}, {"environment_file", asked.environment_file},
            {"timeout", asked.timeout}};
  write_file_atomically(folder / "request.json", to_json_text(json, 1));
  return trial;
}

trials::Task AskedTrial::task() const {
  trials::Task task;
  task.folder = folder;
  task.arguments = {"race", "--trial", "{folder}"};
  task.wanted = {"response.json"};
  task.variables = request.variables;
  task.processors = request.ranks;
  task.timeout = request.timeout;
  // A command, a launcher such as ssh or srun, and a Python with its backends are the caller's own: they get the
  // caller's whole environment, as from a shell (an agent's socket, an allocation of Slurm's, PYTHONPATH).
  if (!request.command.empty() || !request.launch.is_local() || request.python)
    for (const auto& [name, value] : record::whole_environment()) task.variables.try_emplace(name, value);
  if (request.command.empty()) return task;
  // Its time limit is kept by the process beside it, which also ends what it left behind; ours is for the case that
  // this fails.
  task.arguments = {"triage", "trial", "{folder}"};
  task.grace = 2 * kEndingTime;
  if (task.timeout > 0) task.timeout += task.grace;
  return task;
}

TrialResult read_result(const AskedTrial& trial, const trials::TaskEnd& end) {
  const std::filesystem::path answer = trial.folder / "response.json";
  const bool answered = std::filesystem::exists(answer) && !end.timed_out && !end.interrupted && end.error.empty();
  TrialResult result = answered ? read_answer(read_file(answer, kMaxAnswer), trial.nonce) : without_answer(trial, end);
  result.seconds = end.seconds;
  return result;
}

}  // namespace faultline::triage
