// What our own tap says of a trial: a command that arms a plan (`python -m faultline`, FAULTLINE_RECIPE) writes its
// evidence to the trial's folder, and every process its judgement. Where one complains, the fault that the trial was to
// run under is not proven, so the trial says nothing about its cell. Decided by what those files hold, complaints with
// codes, never by an exit status alone (a launcher has its own) or by the words of a log.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/complaint.h"
#include "base/json.h"

namespace faultline::triage {

enum class EvidenceUse { kRead, kRequired, kIgnored };  // required: a trial without any evidence is not proven

struct TapVerdict {
  int64_t processes = 0, ended = 0;   // that wrote evidence; that came to their end
  std::vector<Complaint> complaints;  // of processes, and of a run as a whole
  bool of_failed_script = false;      // every complaining process had failed by itself: its complaints only follow
  std::map<std::string, std::map<std::string, int64_t>> rules;  // by name: calls, elements, changed

  bool left_nothing() const { return processes == 0 && complaints.empty(); }
};

// Reads process-*.json and verdict-*.json of the folder; one that is damaged is a complaint.
TapVerdict read_tap_verdict(const std::filesystem::path& evidence, EvidenceUse use);

Json to_json(const TapVerdict& verdict);  // {processes, ended, rules, complaints, codes: {code: count}}

// "" or why the trial is not proven. failed: its command exited with another status than 0.
std::string unproven(const TapVerdict& verdict, bool failed);

}  // namespace faultline::triage
