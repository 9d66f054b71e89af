#include "triage/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace faultline::triage {
namespace {

constexpr std::array kVerdictNames = {"pass", "fail", "error"};
constexpr std::array<std::string_view, 11> kOutcomes = {"completed",
                                                        "did_not_run",
                                                        "crashed_after_iterations",
                                                        "hang",
                                                        "stopped_at_first_corruption",
                                                        "interrupted",
                                                        "crashed",
                                                        "hung",
                                                        "wrong",
                                                        "unproven",
                                                        "clean"};

TrialResult unreadable(const std::string& why) {
  TrialResult result;
  result.severity = "infrastructure_failed";
  result.sentence = why;
  return result;
}

TrialVerdict verdict_of(const std::string& name) {
  const auto found = std::find(kVerdictNames.begin(), kVerdictNames.end(), name);
  if (found == kVerdictNames.end()) throw std::invalid_argument(fmt::format("verdict '{}'", name.substr(0, 80)));
  return static_cast<TrialVerdict>(found - kVerdictNames.begin());
}

TrialResult from_json(Json answer, const std::string& nonce) {
  if (answer.at("nonce") != nonce) return unreadable("the answer is of another request");
  TrialResult result;
  result.result = std::move(answer.at("result"));
  result.verdict = verdict_of(result.result.at("verdict").get<std::string>());
  result.outcome = result.result.at("outcome").get<std::string>();
  if (std::find(kOutcomes.begin(), kOutcomes.end(), result.outcome) == kOutcomes.end())
    throw std::invalid_argument(fmt::format("outcome '{}'", result.outcome.substr(0, 80)));
  result.sentence = result.result.at("sentence").get<std::string>();
  if (result.verdict != TrialVerdict::kError) (void)sums_of(result.result);
  if (result.verdict == TrialVerdict::kFail) result.severity = "workload_failed";
  if (result.verdict == TrialVerdict::kError)
    result.severity =
        result.outcome == "did_not_run" || result.outcome == "unproven" ? "setup_failed" : "infrastructure_failed";
  return result;
}

}  // namespace

const char* verdict_name(TrialVerdict verdict) { return kVerdictNames[static_cast<std::size_t>(verdict)]; }

EvidenceSums sums_of(const Json& result) {
  EvidenceSums sums;
  for (const Json& rank : result.at("evidence").get_ref<const Json::array_t&>()) {
    sums.events += rank.at("events").at("count").get<int64_t>();
    sums.collectives += rank.at("collectives").get<int64_t>();
    sums.bytes += rank.at("collective_bytes").get<int64_t>();
    const Json& times = rank.at("step_seconds");
    if (times.is_object())
      sums.step_seconds = std::max(sums.step_seconds.value_or(0), times.at("median").get<double>());
  }
  return sums;
}

TrialResult read_answer(std::string_view text, const std::string& nonce) {
  try {
    return from_json(parse_json_text(text, "response.json"), nonce);
  } catch (const std::exception& error) {
    return unreadable(fmt::format("an answer that cannot be read: {}", error.what()));
  }
}

}  // namespace faultline::triage
