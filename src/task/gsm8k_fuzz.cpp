// Fuzzes the reader of task records and the reward. The first byte chooses the places' wording. Only UsageError may
// leave the parser; what it accepts must keep the promises of a Problem: a worked text is scored right by the strict
// rule, and reading the lines again gives equal problems.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "task/gsm8k.h"

namespace faultline::task {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_scorers(std::string_view text) {
  for (const Scoring scoring : {Scoring::kStrict, Scoring::kFlexible}) {
    const std::string answer = extract_answer(text, scoring);
    require(answer.find_first_not_of("-0123456789.,") == std::string::npos);
    require(reward(text, answer, scoring) == (answer.empty() ? 0 : 1));
    require(reward(text, "x", scoring) == 0);
  }
}

}  // namespace
}  // namespace faultline::task

FAULTLINE_FUZZ_TARGET(gsm8k_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline;
  using namespace faultline::task;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  check_scorers(text);
  const RecordPlace place = data[0] % 2 == 0 ? RecordPlace::kLine : RecordPlace::kRow;
  try {
    const std::vector<Problem> problems = parse_gsm8k(text, "fuzz", "fuzz", place);
    require(!problems.empty());
    for (const Problem& problem : problems) {
      require(!problem.question.empty() && !problem.answer.empty());
      require(problem.solution.empty() || reward(problem.solution, problem.answer, Scoring::kStrict) == 1);
    }
    require(parse_gsm8k(text, "fuzz", "fuzz", place) == problems);
  } catch (const UsageError& error) {
    require(std::string_view(error.what()).starts_with("fuzz:"));
  }
  return 0;
}
