// Fuzzes everything that reads a record's bytes. The first byte chooses: the event log as it is; the event log with
// each line's number and checksum repaired, because random bytes never pass the checksum; JSON text (which is all that
// a trial's outcome and evidence are) through a written event and back; a whole-file document. Refusing is fine,
// anything but a RuntimeFailure is a finding, and so is a scan that depends on how the bytes were cut into pieces.
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "record/crc32c.h"
#include "record/document.h"
#include "record/jsonl.h"

namespace faultline {
namespace {

struct Scan {
  std::string refusal;
  std::vector<std::string> events;
  EventExtent extent;
};

Scan scan(std::string_view bytes, size_t piece) {
  Scan result;
  try {
    EventScanner scanner("fuzz");
    const EventVisitor keep = [&](Json&& event) { result.events.push_back(to_json_text(event)); };
    for (size_t place = 0; place < bytes.size(); place += piece) scanner.feed(bytes.substr(place, piece), keep);
    result.extent = scanner.finish();
  } catch (const RuntimeFailure& failure) {
    result.refusal = failure.what();
  }
  return result;
}

void require(bool condition) {
  if (!condition) std::abort();
}

void check_scan(std::string_view bytes) {
  const Scan whole = scan(bytes, bytes.size() + 1);
  const Scan pieces = scan(bytes, 1 + bytes.size() % 7);
  require(whole.refusal == pieces.refusal && whole.events == pieces.events);
  if (!whole.refusal.empty()) return;
  require(whole.extent.bytes + whole.extent.torn_bytes == bytes.size());
  require(whole.events.size() == whole.extent.lines);
  const Scan kept = scan(bytes.substr(0, whole.extent.bytes), bytes.size() + 1);  // what a writer would continue from
  require(kept.refusal.empty() && kept.events == whole.events && kept.extent.torn_bytes == 0);
}

// {"v":1,"n":N,<line>,"crc":"…"}\n for each line of the input.
std::string repaired(std::string_view bytes) {
  std::string log;
  for (uint64_t n = 0; !bytes.empty(); ++n) {
    const size_t end = bytes.find('\n');
    const std::string body = fmt::format("{{\"v\":1,\"n\":{},{}", n, bytes.substr(0, end));
    log += fmt::format("{},\"crc\":\"{:08x}\"}}\n", body, crc32c(body));
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
  }
  return log;
}

void check_round_trip(std::string_view text) {
  const Json value = parse_json_text(text, "fuzz");
  const std::string line = event_line(0, {{"value", value}});
  const Scan once = scan(line, line.size());
  require(once.refusal.empty() && once.events.size() == 1);
  require(once.events[0] == to_json_text({{"n", 0}, {"v", 1}, {"value", value}}));
}

}  // namespace
}  // namespace faultline

FAULTLINE_FUZZ_TARGET(jsonl_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0: check_scan(rest); break;
      case 1: check_scan(repaired(rest)); break;
      case 2: check_round_trip(rest); break;
      case 3: parse_document(rest, "manifest", "fuzz"); break;
    }
  } catch (const RuntimeFailure&) {
  }
  return 0;
}
