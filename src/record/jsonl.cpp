// Lines are cut and checked as bytes first (prefix with version and number, checksum at a fixed place), and only a line
// that passes is parsed: a damaged file never reaches the JSON parser.
#include "record/jsonl.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"

namespace faultline::record {
namespace {

constexpr std::string_view kVersionKey = "{\"v\":";
constexpr std::string_view kCrcKey = ",\"crc\":\"";
constexpr size_t kSealBytes = kCrcKey.size() + 8 + 2;  // ,"crc":"xxxxxxxx"}

std::string seal(std::string_view body) { return fmt::format("{}{:08x}\"}}", kCrcKey, crc32c(body)); }

bool is_sealed(std::string_view line) {
  if (line.size() <= kSealBytes) return false;
  const std::string_view body = line.substr(0, line.size() - kSealBytes);
  return line.substr(body.size()) == seal(body);
}

std::string line_prefix(uint64_t n) { return fmt::format("{}{},\"n\":{}", kVersionKey, kEventVersion, n); }

// The version a line claims, whole or not; later versions may well seal their lines in another way.
int claimed_version(std::string_view line) {
  if (!line.starts_with(kVersionKey)) return 0;
  int version = 0;
  size_t place = kVersionKey.size();
  for (; place < line.size() && line[place] >= '0' && line[place] <= '9' && version < 1000000; ++place) {
    version = version * 10 + (line[place] - '0');
  }
  return place < line.size() && line[place] == ',' ? version : 0;
}

void refuse_newer_version(std::string_view line, const std::string& place) {
  if (const int version = claimed_version(line); version > kEventVersion) {
    throw RuntimeFailure(fmt::format("{}: written as event version {}, this program knows {}; use a newer faultline",
                                     place, version, kEventVersion));
  }
}

[[noreturn]] void refuse_damaged(const std::string& place, std::string_view why) {
  throw RuntimeFailure(
      fmt::format("{}: damaged record: {}; restore the file from a copy, or start a new run", place, why));
}

}  // namespace

void EventScanner::feed(std::string_view bytes, const EventVisitor& visit) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (partial_.size() + piece.size() > kMaxEventBytes) {
      refuse_damaged(place(), fmt::format("a line of more than {} bytes", kMaxEventBytes));
    }
    if (end == std::string_view::npos) {
      partial_.append(piece);
      return;
    }
    if (partial_.empty()) {
      take_line(piece, visit);
    } else {
      partial_.append(piece);
      take_line(partial_, visit);
      partial_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
}

void EventScanner::take_line(std::string_view line, const EventVisitor& visit) {
  refuse_newer_version(line, place());
  if (!is_sealed(line)) refuse_damaged(place(), "its checksum does not match its content");
  const std::string prefix = line_prefix(extent_.lines);
  if (!line.starts_with(prefix) || line[prefix.size()] != ',') {
    refuse_damaged(place(),
                   fmt::format("it should begin with '{}': lines were removed, repeated or reordered", prefix));
  }
  Json event = parse_json_text(line, place());
  event.erase("crc");
  extent_.bytes += line.size() + 1;
  ++extent_.lines;
  visit(std::move(event));
}

EventExtent EventScanner::finish() const {
  refuse_newer_version(partial_, place());
  // A torn line stops anywhere up to its closing brace; bytes beyond the brace mean that the newline was overwritten.
  if (!partial_.empty() && is_sealed(std::string_view(partial_).substr(0, partial_.size() - 1))) {
    refuse_damaged(place(), "its newline was overwritten");
  }
  EventExtent extent = extent_;
  extent.torn_bytes = partial_.size();
  return extent;
}

std::string EventScanner::place() const { return fmt::format("{}:{}", origin_, extent_.lines + 1); }

EventExtent scan_events(const std::filesystem::path& path, const EventVisitor& visit) {
  EventScanner scanner(path.string());
  read_blocks(path, [&](std::string_view block) { scanner.feed(block, visit); });
  return scanner.finish();
}

std::vector<Json> read_events(const std::filesystem::path& path) {
  std::vector<Json> events;
  scan_events(path, [&](Json&& event) { events.push_back(std::move(event)); });
  return events;
}

std::string event_line(uint64_t n, const Json& event) {
  FL_ASSERT(event.is_object());
  FL_ASSERT(!event.contains("v") && !event.contains("n") && !event.contains("crc"));
  std::string line = line_prefix(n);
  if (!event.empty()) {
    const std::string text = to_json_text(event);
    line += ',';
    line.append(text, 1, text.size() - 2);  // without its braces
  }
  line += seal(line);
  if (line.size() > kMaxEventBytes) {
    throw RuntimeFailure(
        fmt::format("event {}: a line of {} bytes, at most {} are allowed", n, line.size(), kMaxEventBytes));
  }
  line += '\n';
  return line;
}

EventWriter::EventWriter(const std::filesystem::path& path) : file_(path, AppendFile::Existing::kContinue) {
  recovered_ = scan_events(path, [](Json&&) {});
  if (recovered_.torn_bytes > 0) file_.truncate(recovered_.bytes);
  lines_ = recovered_.lines;
}

EventWriter::~EventWriter() {
  try {
    flush_step();
  } catch (...) {
    // A destructor cannot report; these lines were never promised.
  }
}

void EventWriter::append(const Json& event) {
  buffer_ += event_line(lines_, event);
  ++lines_;
}

void EventWriter::flush_step() {
  if (buffer_.empty()) return;
  file_.append_durably(buffer_);
  buffer_.clear();
}

void EventWriter::rewind(uint64_t lines) {
  flush_step();
  if (lines > lines_) {
    throw RuntimeFailure(
        fmt::format("{}: holds {} events, the checkpoint was written after {}; they belong to different runs",
                    file_.path().string(), lines_, lines));
  }
  EventScanner scanner(file_.path().string());
  uint64_t keep_bytes = 0;
  read_blocks(file_.path(), [&](std::string_view block) {
    scanner.feed(block, [&](Json&&) {
      if (scanner.so_far().lines == lines) keep_bytes = scanner.so_far().bytes;
    });
  });
  file_.truncate(keep_bytes);
  lines_ = lines;
}

// The reflected form of polynomial 0x1EDC6F41 (RFC 3720, appendix B.4), one byte per table look-up.

namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82F63B78u : 0u);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = 0xFFFFFFFFu;
  for (const char c : bytes) value = (value >> 8) ^ kTable[(value ^ static_cast<uint8_t>(c)) & 0xFF];
  return value ^ 0xFFFFFFFFu;
}

}  // namespace faultline::record
