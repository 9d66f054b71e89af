// One trial: a fresh process with its environment set before any runtime loads, a request with a nonce, an answer that
// repeats it, and a time limit for the whole process group. Whatever happens, a trial ends and says how.
#pragma once

#include <filesystem>
#include <string>

#include "triage/answer.h"
#include "triage/plan.h"
#include "trials/executor.h"

namespace faultline::triage {

struct TrialRequest {
  std::string cell;
  int64_t index = 0;
  uint64_t seed = 0;
  int ranks = 2;
  std::string transport, device;
  Environment variables;
  race::Launch launch;
  std::optional<race::PythonRanks> python;
  Json config;
  double timeout = 600;
  std::vector<std::string> command;  // empty: a race
  Json patterns = Json::array();     // of its output
  Json rules = Json::object();       // on its files: trial_rules.h
  bool environment_file = false;

  std::string fingerprint() const;  // of what decides the result; the timeout does not
};

TrialRequest make_request(const Plan& plan, const Cell& cell, int64_t index);

// A trial as a task: `program race --trial FOLDER`, or `program triage trial FOLDER` where it is a command. Its folder
// is made anew; request.json, response.json and log.txt lie in it, and of a command stdout.log and stderr.log.
struct AskedTrial {
  TrialRequest request;
  std::filesystem::path folder;
  std::string nonce;  // that the answer must repeat
  double started = 0;
  trials::Task task() const;
};
AskedTrial ask(TrialRequest request, const std::filesystem::path& folder);
// What response.json and log.txt say, or how the process ended without an answer.
TrialResult read_result(const AskedTrial& trial, const trials::TaskEnd& end);

}  // namespace faultline::triage
