// The event log of a run: one JSON object per line, `{"v":1,"n":17,…,"crc":"9d3a01ff"}`. `n` counts lines from 0, so a
// removed, repeated or inserted line shows; `crc` is the CRC-32C of everything before it, so an edited one does. It is
// the last field, at a fixed distance from the end, and is checked before the line is parsed. A line exists only with
// its newline: what follows the last newline was torn by a crash and was never reported done; readers leave it out, a
// writer cuts it off. Anything else that is wrong is an error that names file:line; nothing is ever skipped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "base/json.h"

namespace faultline::record {

constexpr int kEventVersion = 1;
constexpr size_t kMaxEventBytes = size_t{1} << 26;  // of one line; more is a mistake, not an event

// What a scan found: whole lines, the bytes they take, and the bytes of a torn line after them.
struct EventExtent {
  uint64_t lines = 0;
  uint64_t bytes = 0;
  uint64_t torn_bytes = 0;
};

using EventVisitor = std::function<void(Json&& event)>;

// Takes the log in pieces of any size. An event handed on carries "v" and "n", not "crc".
class EventScanner {
 public:
  explicit EventScanner(std::string origin) : origin_(std::move(origin)) {}
  void feed(std::string_view bytes, const EventVisitor& visit);
  EventExtent finish() const;  // after the last piece

  const EventExtent& so_far() const { return extent_; }

 private:
  void take_line(std::string_view line, const EventVisitor& visit);
  std::string place() const;

  std::string origin_;
  std::string partial_;  // the line that has no newline yet
  EventExtent extent_;
};

EventExtent scan_events(const std::filesystem::path& path, const EventVisitor& visit);
std::vector<Json> read_events(const std::filesystem::path& path);

// Not for several threads. The run directory's lock keeps other processes out.
class EventWriter {
 public:
  // Creates the log, or continues an existing one after its last whole line.
  explicit EventWriter(const std::filesystem::path& path);
  EventWriter(EventWriter&&) = default;
  EventWriter& operator=(EventWriter&&) = delete;
  ~EventWriter();  // writes what is buffered if it can; only flush_step promises

  // Buffers one line. The event is an object without the keys "v", "n", "crc".
  void append(const Json& event);

  // On return every appended line is on disk. When it throws they are still buffered, the file ends with the last
  // whole step, and the call may be repeated.
  void flush_step();

  // Drops all lines from number `lines` on: a run resumed from a checkpoint repeats the steps after it.
  void rewind(uint64_t lines);

  uint64_t lines() const { return lines_; }                    // buffered ones included
  const EventExtent& recovered() const { return recovered_; }  // what the constructor found

 private:
  AppendFile file_;
  std::string buffer_;
  uint64_t lines_ = 0;
  EventExtent recovered_;
};

// One line, newline included (also for tests and the fuzzer).
std::string event_line(uint64_t n, const Json& event);

// CRC-32C (Castagnoli), the one checksum of our records: it guards the lines of events.jsonl and the TFRecord framing
// that TensorBoard reads. A table of 256 entries is enough: records are kilobytes per step.

uint32_t crc32c(std::string_view bytes);

}  // namespace faultline::record
