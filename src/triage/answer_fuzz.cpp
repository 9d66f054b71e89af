// Fuzzes the answer of a trial, which comes from another process. Nothing may be thrown; what is no answer to this
// request is an error with a sentence; a verdict other than error needs the nonce.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/fuzz_target.h"
#include "triage/answer.h"

namespace faultline::triage {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const std::string& text, const std::string& nonce) {
  const TrialResult result = read_answer(text, nonce);
  require(result.verdict == TrialVerdict::kError || text.find(nonce) != std::string::npos);
  require(result.verdict != TrialVerdict::kPass || result.severity == "ok");
  require(result.verdict != TrialVerdict::kError || result.severity != "ok");
  require(result.result.is_null() || result.result.is_object());
  require(!to_json_text(result.result).empty());
}

}  // namespace
}  // namespace faultline::triage

FAULTLINE_FUZZ_TARGET(answer_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline;
  using namespace faultline::triage;
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  // The nonce of the corpus, or one that no input can know.
  triage::check(rest, data[0] % 2 == 0 ? "5eed" : "0123456789abcdef-unknown");
  if (data[0] % 4 == 3) triage::check("{\"nonce\": \"5eed\", \"result\": " + rest + "}", "5eed");
  return 0;
}
