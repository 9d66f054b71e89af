// Scalars for TensorBoard: an `events.out.tfevents.*` file, written without TensorFlow or protobuf. A record is framed
// as TFRecord (length, masked CRC-32C, Event message, masked CRC-32C); the messages need six fields, encoded by hand.
// Each process writes a file of its own: TensorBoard joins them by name, and a torn last record is one it ignores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"
#include "base/machine.h"

namespace faultline::record {

class TensorboardWriter {
 public:
  // `resumed_at`: tells TensorBoard to forget the steps from there on that an earlier process wrote.
  explicit TensorboardWriter(const std::filesystem::path& directory, const Clock& clock = system_seconds,
                             std::optional<int64_t> resumed_at = std::nullopt);
  TensorboardWriter(TensorboardWriter&&) = default;
  TensorboardWriter& operator=(TensorboardWriter&&) = delete;
  ~TensorboardWriter();  // writes what is buffered if it can

  void scalar(std::string_view tag, float value, int64_t step);  // buffered
  void flush();                                                  // on return all scalars are on disk

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  Clock clock_;
  AppendFile file_;
  std::string buffer_;
};

}  // namespace faultline::record
