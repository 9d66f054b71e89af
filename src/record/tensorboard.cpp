// Field numbers from tensorflow/core/util/event.proto and framework/summary.proto:
//   Event: wall_time = 1 (double), step = 2 (int64), file_version = 3, summary = 5, session_log = 7
//   Summary: value = 1; Summary.Value: tag = 1, simple_value = 2 (float); SessionLog: status = 1 (START = 1)
// Framing from tensorflow/core/lib/io/record_writer.h. Little-endian throughout.
#include "record/tensorboard.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "base/machine.h"
#include "record/jsonl.h"

namespace faultline::record {
namespace {

static_assert(std::endian::native == std::endian::little, "fixed-width fields are copied as they lie in memory");

constexpr int kMaxFilesPerSecond = 10000;

enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <typename T>
std::string fixed(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string field(uint64_t number, WireType type, std::string_view payload) {
  return varint(number << 3 | type).append(payload);
}

std::string message(uint64_t number, std::string_view body) {
  return field(number, kBytes, varint(body.size()).append(body));
}

// A stored CRC is rotated and offset, so that a CRC over data that contains CRCs stays meaningful.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

std::string framed(std::string_view event) {
  const std::string length = fixed(static_cast<uint64_t>(event.size()));
  return length + fixed(masked_crc(length)) + std::string(event) + fixed(masked_crc(event));
}

std::string event_head(double wall_time, int64_t step) {
  return field(1, kFixed64, fixed(wall_time)) + field(2, kVarint, varint(static_cast<uint64_t>(step)));
}

// TensorBoard reads the files of a folder in the order of their names; ours sort by second, then by counter.
AppendFile new_file(const std::filesystem::path& directory, double seconds) {
  const std::string host = host_name();
  for (int counter = 0; counter < kMaxFilesPerSecond; ++counter) {
    const std::filesystem::path path =
        directory /
        fmt::format("events.out.tfevents.{:010}.{:04}.{}", static_cast<int64_t>(std::floor(seconds)), counter, host);
    std::error_code ignored;  // creating it will say
    if (!std::filesystem::exists(path, ignored)) return AppendFile(path, AppendFile::Existing::kRefuse);
  }
  throw RuntimeFailure(fmt::format("{}: {} TensorBoard files of one second", directory.string(), kMaxFilesPerSecond));
}

}  // namespace

TensorboardWriter::TensorboardWriter(const std::filesystem::path& directory, const Clock& clock,
                                     std::optional<int64_t> resumed_at)
    : clock_(clock), file_(new_file(directory, clock_())) {
  const double now = clock_();
  buffer_ = framed(field(1, kFixed64, fixed(now)) + message(3, "brain.Event:2"));
  if (resumed_at) buffer_ += framed(event_head(now, *resumed_at) + message(7, field(1, kVarint, varint(1))));
  flush();
}

TensorboardWriter::~TensorboardWriter() {
  try {
    flush();
  } catch (...) {
    // A destructor cannot report; these scalars were never promised.
  }
}

void TensorboardWriter::scalar(std::string_view tag, float value, int64_t step) {
  const std::string point = message(1, tag) + field(2, kFixed32, fixed(value));
  buffer_ += framed(event_head(clock_(), step) + message(5, message(1, point)));
}

void TensorboardWriter::flush() {
  if (buffer_.empty()) return;
  file_.append_durably(buffer_);
  buffer_.clear();
}

}  // namespace faultline::record
