// Fuzzes what takes secrets out of other people's logs. Whatever stands before and after, a token on a line of its own,
// a value under a secret's name and a value that was given do not come out; JSON stays JSON.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "record/redaction.h"

namespace faultline::record {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

bool holds_planted(const std::string& text) {
  return text.find("PLANTED") != std::string::npos || text.find("given-to-it") != std::string::npos;
}

std::string without_planted(std::string text) {
  for (const char* word : {"PLANTED", "given-to-it"})
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word)) text[at] = '#';
  return text;
}

}  // namespace
}  // namespace faultline::record

FAULTLINE_FUZZ_TARGET(redaction_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline::record;
  const std::string given = without_planted(std::string(reinterpret_cast<const char*>(data), size));
  const std::string before = given.substr(0, size / 2), after = given.substr(size / 2);
  const RedactionOptions options{.values = {"given-to-it"}, .names = {{"/home/ada", "~"}}};
  const std::string planted =
      "\nhf_PLANTEDPLANTEDPLANTED\nHF_TOKEN=PLANTED\nAuthorization: PLANTED PLANTED\nxgiven-to-ity\n";
  require(!holds_planted(Redactor(options).text(before + planted + after)));
  try {
    const faultline::Json json = faultline::parse_json_text(given, "given");
    const std::string text = faultline::to_json_text(Redactor(options).json(json));
    (void)faultline::parse_json_text(text, "redacted");
  } catch (const faultline::RuntimeFailure&) {  // it was none
  }
  return 0;
}
