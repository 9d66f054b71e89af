#include "race/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

namespace faultline::race {
namespace {

Json json_of(const RankEvidence& e) {
  Json json = to_json(e.findings);
  json["rank"] = e.rank;
  json["iterations"] = e.iterations;
  json["stopped"] = e.stopped;
  json["canary"] = {{"ran", e.canary.ran}, {"detected", e.canary.detected}, {"attributed", e.canary.attributed}};
  json["step_seconds"] = e.step_seconds.summary();
  if (!e.step_seconds_plain.empty()) json["step_seconds_without_digests"] = e.step_seconds_plain.summary();
  json["collectives"] = e.collectives;
  json["collective_bytes"] = e.collective_bytes;
  return json;
}

bool corrupted(const RunResult& result) {
  return std::any_of(result.evidence.begin(), result.evidence.end(),
                     [](const RankEvidence& e) { return e.findings.corrupted(); });
}

// The first event in time, which the sentence of a failed run tells.
const TimedEvent* first_event(const RunResult& result) {
  const TimedEvent* first = nullptr;
  for (const RankEvidence& e : result.evidence)
    for (const TimedEvent& event : e.findings.events.items())
      if (first == nullptr || event.iteration < first->iteration) first = &event;
  return first;
}

// "rank 1,3", "rank 1 on n1, rank 3 on n2".
std::string ranks_text(const RunResult& result, const std::set<int>& ranks) {
  if (result.hosts.empty()) return fmt::format("rank {}", fmt::join(ranks, ","));
  std::vector<std::string> texts;
  for (const int rank : ranks) texts.push_back(result.rank_text(rank));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string corruption_sentence(const RunResult& result) {
  uint64_t events = 0;
  std::set<int> ranks;
  for (const RankEvidence& e : result.evidence) {
    events += e.findings.events.count();
    if (e.findings.corrupted()) ranks.insert(e.rank);
  }
  const TimedEvent* first = first_event(result);
  std::string text = fmt::format("{} corruption{} on {}", events, events == 1 ? "" : "s", ranks_text(result, ranks));
  if (first != nullptr)
    text +=
        fmt::format("; first: {} in {} of layer {} on {} in iteration {}", cause_name(first->event.cause),
                    first->event.operation, first->event.layer, result.rank_text(first->event.rank), first->iteration);
  return text;
}

// Note [Who is to blame]; where all wait in step, whom the failures themselves name.
std::vector<int> blamed_for(const RunResult& result) {
  std::vector<int> blamed = to_blame(result.standings);
  if (!blamed.empty()) return blamed;
  std::set<int> named;
  for (const RankFailure& failure : result.failures) named.insert(failure.named.begin(), failure.named.end());
  return {named.begin(), named.end()};
}

std::string failure_sentence(const RunResult& result) {
  const std::string& first = result.failures.front().sentence;
  if (result.blamed.empty())
    return fmt::format("{}: {}",
                       result.outcome == Outcome::kHang ? "every rank waits for another, and none can be blamed"
                                                        : "no rank can be blamed",
                       first);
  const int rank = result.blamed.front();
  const auto own = std::find_if(result.failures.begin(), result.failures.end(),
                                [&](const RankFailure& failure) { return failure.rank == rank; });
  std::string what = own == result.failures.end() ? first : own->sentence;
  if (result.standings.size() > 1 && to_blame(result.standings) == result.blamed) {
    const Standing& standing = result.standings[static_cast<size_t>(rank)];
    const bool told = own != result.failures.end() && !own->hang && standing.state == Standing::State::kCalling;
    if (standing.state != Standing::State::kFailed && !told) what = offence(standing);
  }
  return fmt::format("{}: {}", ranks_text(result, {result.blamed.begin(), result.blamed.end()}), what);
}

}  // namespace

const char* verdict_name(Verdict verdict) {
  constexpr std::array kNames = {"pass", "fail", "error"};
  return kNames[static_cast<size_t>(verdict)];
}
const char* outcome_name(Outcome outcome) {
  constexpr std::array kNames = {
      "completed", "did_not_run", "crashed_after_iterations", "hang", "stopped_at_first_corruption", "interrupted"};
  return kNames[static_cast<size_t>(outcome)];
}

bool RunResult::canary_missed() const {
  return std::any_of(evidence.begin(), evidence.end(),
                     [](const RankEvidence& e) { return e.canary.ran && !(e.canary.detected && e.canary.attributed); });
}

int64_t RunResult::iterations() const {
  if (evidence.size() < static_cast<size_t>(ranks)) return 0;
  int64_t least = evidence.empty() ? 0 : evidence[0].iterations;
  for (const RankEvidence& e : evidence) least = std::min(least, e.iterations);
  return least;
}

std::string RunResult::rank_text(int rank) const {
  return hosts.empty() ? fmt::format("rank {}", rank)
                       : fmt::format("rank {} on {}", rank, hosts[static_cast<size_t>(rank)]);
}

void conclude(RunResult& result) {
  int64_t most = 0;
  for (const RankEvidence& e : result.evidence) most = std::max(most, e.iterations);
  const bool found = corrupted(result);
  if (!result.failures.empty()) {
    const bool hang = std::any_of(result.failures.begin(), result.failures.end(),
                                  [](const RankFailure& failure) { return failure.hang; });
    result.blamed = blamed_for(result);
    result.outcome = hang ? Outcome::kHang : most > 0 ? Outcome::kCrashed : Outcome::kDidNotRun;
    result.verdict = found ? Verdict::kFail : Verdict::kError;
    result.sentence = failure_sentence(result);
    if (found) result.sentence += "; before that " + corruption_sentence(result);
    return;
  }
  if (result.canary_missed()) {
    result.outcome = Outcome::kDidNotRun;
    result.verdict = Verdict::kError;
    result.sentence = "the planted canary was not found: this run could not have seen a corruption";
    return;
  }
  const bool stopped =
      std::any_of(result.evidence.begin(), result.evidence.end(), [](const RankEvidence& e) { return e.stopped; });
  const bool interrupted =
      std::any_of(result.evidence.begin(), result.evidence.end(), [](const RankEvidence& e) { return e.interrupted; });
  result.outcome = interrupted ? Outcome::kInterrupted : stopped ? Outcome::kStopped : Outcome::kCompleted;
  result.verdict = found ? Verdict::kFail : interrupted && most == 0 ? Verdict::kError : Verdict::kPass;
  result.sentence = found
                        ? corruption_sentence(result)
                        : fmt::format("no corruption in {} iterations on {} ranks", result.iterations(), result.ranks);
}

Json to_json(const RunResult& result, const Config& config) {
  Json evidence = Json::array(), failures = Json::array(), standings = Json::array();
  for (const RankEvidence& e : result.evidence) evidence.push_back(json_of(e));
  for (const RankFailure& f : result.failures)
    failures.push_back({{"rank", f.rank}, {"named", f.named}, {"hang", f.hang}, {"sentence", f.sentence}});
  for (const Standing& standing : result.standings) standings.push_back(to_json(standing));
  Json json = {{"verdict", verdict_name(result.verdict)},
               {"outcome", outcome_name(result.outcome)},
               {"sentence", result.sentence},
               {"blamed", result.blamed},
               {"ranks", result.ranks},
               {"iterations", result.iterations()},
               {"layers", config.layers()},
               {"seconds", result.seconds},
               {"evidence", evidence},
               {"failures", failures},
               {"standings", standings}};
  if (!result.hosts.empty()) json["hosts"] = result.hosts;
  return json;
}

std::vector<std::string> log_lines(const RunResult& result) {
  std::vector<std::string> lines;
  const auto host = [&](int rank) {
    return result.hosts.empty() ? "" : fmt::format(" host={}", result.hosts[static_cast<size_t>(rank)]);
  };
  for (const RankEvidence& e : result.evidence)
    for (std::string& line : log_lines(e.findings, result.hosts)) lines.push_back(std::move(line));
  for (const RankFailure& f : result.failures)
    lines.push_back(
        fmt::format("{}: rank={}{} {}", f.hang ? "HANG" : "RANK FAILURE", f.rank, host(f.rank), f.sentence));
  for (int rank = 0; rank < static_cast<int>(result.standings.size()); ++rank) {
    const Standing& standing = result.standings[static_cast<size_t>(rank)];
    lines.push_back(fmt::format("STANDING: rank={}{} {}{}", rank, host(rank), state_name(standing.state),
                                standing.place.empty() ? ", it never reported" : " in " + standing.text()));
  }
  if (result.verdict == Verdict::kPass)
    lines.push_back(fmt::format("PASSED: No corruption in {} iterations", result.iterations()));
  lines.push_back(
      fmt::format("VERDICT: {} ({}): {}", verdict_name(result.verdict), outcome_name(result.outcome), result.sentence));
  return lines;
}

std::string describe(const Config& config, int ranks) {
  constexpr std::array kModes = {"default", "fsdp", "ddp"};
  std::vector<std::string> records;
  for (int key = 0; key < kKeys; ++key) {
    const bool computes = key >= static_cast<int>(Key::kComputeInput);
    if (config.digest[static_cast<size_t>(key)] == DigestTiming::kOff || (computes && !config.simulate_compute))
      continue;
    records.emplace_back(key_name(static_cast<Key>(key)));
  }
  return fmt::format("{} ranks, mode {}, {} layers, {}, {} iterations; patterns {}; {} of {}", ranks,
                     kModes[static_cast<size_t>(config.mode)], config.layers(), dtype_name(config.dtype),
                     config.verify_iterations, config.patterns ? "checked" : "not checked",
                     config.int16_checksum ? "int16 sums" : "digests",
                     records.empty() ? "nothing" : fmt::format("{}", fmt::join(records, ", ")));
}

}  // namespace faultline::race
