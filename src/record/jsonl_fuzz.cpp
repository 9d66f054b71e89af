// Fuzzes everything that reads a record's bytes. The first byte chooses: the event log as it is; the event log with
// each line's number and checksum repaired, because random bytes never pass the checksum; JSON text (which is all that
// a trial's outcome and evidence are) through a written event and back; a whole-file document, as it is or with its
// kind, version, hash and seal repaired, so that what reads a run's documents behind the seal is reached. Refusing is
// fine, anything but a RuntimeFailure is a finding, and so is a scan that depends on how the bytes were cut into
// pieces.
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "record/document.h"
#include "record/jsonl.h"
#include "record/run_directory.h"

namespace faultline::record {
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

// The body as a sound document of that kind, if it is an object; a manifest's hash is that of its recipe.
std::string sealed(std::string_view text, const std::string& kind) {
  Json document = parse_json_text(text, "fuzz");
  if (!document.is_object()) throw RuntimeFailure("no object");
  if (kind == "manifest" && document.contains("recipe")) document["hash"] = json_hash(document["recipe"]);
  document["kind"] = kind;
  document["version"] = kDocumentVersion;
  document.erase("seal");
  document["seal"] = json_hash(document);
  return to_json_text(document);
}

// A run's manifest, and behind a zero byte its summary or ledger.
void check_run(std::string_view text) {
  static const FuzzFolder folder;
  const size_t end = text.find('\0');
  const std::string_view rest = end == std::string_view::npos ? "" : text.substr(end + 1);
  folder.write("manifest.json", sealed(text.substr(0, end), "manifest"));
  for (const char* kind : {"summary", "ledger"}) {
    const std::string name = std::string(kind) + ".json";
    if (rest.empty()) {
      folder.remove(name);
    } else {
      folder.write(name, sealed(rest, kind));
    }
  }
  const RunRecord record = read_run(folder.path());
  require(record.manifest.hash() == json_hash(record.manifest.recipe));
  require(record.summary.has_value() == !rest.empty() && record.ledger.has_value() == !rest.empty());
  write_manifest(folder.path() / "again.json", record.manifest);
  require(read_manifest(folder.path() / "again.json").hash() == record.manifest.hash());
}

}  // namespace
}  // namespace faultline::record

FAULTLINE_FUZZ_TARGET(jsonl_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline;
  using namespace faultline::record;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0: check_scan(rest); break;
      case 1: check_scan(repaired(rest)); break;
      case 2: check_round_trip(rest); break;
      case 3:
        if (data[0] < 128) {
          parse_document(rest, "manifest", "fuzz");
        } else {
          check_run(rest);
        }
        break;
    }
  } catch (const RuntimeFailure&) {
  }
  return 0;
}
