// A whole run: all ranks, however they are carried, and one verdict over the merged evidence of all of them. Ranks are
// threads of this process, or processes that meet over Gloo or NCCL (run_joined, one call a process). Whatever happens
// to a rank, the run ends within the timeout and some seconds, with a verdict that names it.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/membership.h"
#include "race/launch.h"
#include "race/rank_loop.h"

namespace faultline::race {

inline constexpr double kGraceSeconds = 3;  // beyond the timeout, for ranks to write their evidence

enum class Verdict { kPass, kFail, kError };
enum class Outcome { kCompleted, kDidNotRun, kCrashed, kHang, kStopped, kInterrupted };
const char* verdict_name(Verdict verdict);
const char* outcome_name(Outcome outcome);

struct RankFailure {
  int rank = 0;            // who says it
  std::vector<int> named;  // by what happened itself: it did not come, or with something else
  bool hang = false;
  std::string sentence;
};

// What a process needs to make its data group itself.
struct DataGroupOrder {
  const cluster::Membership& membership;
  at::Device device;
  double timeout_seconds;
  Heartbeat& heartbeat;
};
using DataGroup = std::function<c10::intrusive_ptr<c10d::Backend>(const DataGroupOrder&)>;

struct RunOptions {
  int ranks = 4;
  at::Device device = at::kCPU;
  std::vector<Hook*> hooks;
  const std::atomic<bool>* interrupted = nullptr;
  std::function<void(int64_t done, int64_t total)> progress;
  bool alternate_digests = false;
  Reference reference;
  int threads_per_rank = 0;                      // 0: the machine's cores, divided
  Launch launch;                                 // of ranks that are processes
  std::optional<PythonRanks> python;             // transport torch: these are Python's
  DataGroup data_group;                          // of this process; empty: Gloo on a CPU, NCCL on GPUs
  std::map<std::string, std::string> variables;  // that they get besides
};

struct RunResult {
  Verdict verdict = Verdict::kError;
  Outcome outcome = Outcome::kDidNotRun;
  std::string sentence;     // why, for people
  std::vector<int> blamed;  // ranks
  int ranks = 0;
  std::vector<RankEvidence> evidence;  // by rank; of those that left any
  std::vector<RankFailure> failures;
  std::vector<std::string> hosts;   // by rank; empty where all are on this machine
  std::vector<Standing> standings;  // by rank, when the first of them gave up; empty where none did, or none had joined
  bool silent = false;              // another rank reports for all
  bool abandoned = false;           // a rank's thread never came back: end the process without waiting for it
  double seconds = 0;

  bool canary_missed() const;
  int64_t iterations() const;             // verified on every rank
  std::string rank_text(int rank) const;  // "rank 2", "rank 2 on n3"
};

RunResult run_threads(const Config& config, const RunOptions& options);

// Verdict, outcome, blame and sentence from evidence, failures and standings.
void conclude(RunResult& result);
Json to_json(const RunResult& result, const Config& config);
std::vector<std::string> log_lines(const RunResult& result);  // ends with "PASSED: …" or not, and "VERDICT: …"

// Which records are active, for the line at the start.
std::string describe(const Config& config, int ranks);

// A rank's evidence as a file: what a process leaves for whoever merges all ranks'.

Json evidence_to_json(const RankEvidence& evidence);
RankEvidence evidence_from_json(const Json& json, const std::string& origin);  // RuntimeFailure where it is damaged

}  // namespace faultline::race
