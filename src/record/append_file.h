// A file that only grows, in whole pieces. A piece that could not be written and synced is cut off again, so that a
// full disk never leaves half a piece for the next one to be glued to. Shared by the event log and the TensorBoard
// file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "record/file_descriptor.h"

namespace faultline {

class AppendFile {
 public:
  enum class Existing { kContinue, kRefuse };

  // Creates the file when it is missing, durably.
  AppendFile(const std::filesystem::path& path, Existing existing);

  // When it returns the piece is on disk. When it throws, the file holds what it held before (or will, once the disk
  // works again: the cut is repeated before the next piece) and the call may be repeated.
  void append_durably(std::string_view piece);

  // Cuts the file; size() must be larger.
  void truncate(uint64_t size);

  uint64_t size() const { return size_; }  // bytes known to be whole pieces
  const std::filesystem::path& path() const { return path_; }

 private:
  void cut_to(uint64_t size);

  std::filesystem::path path_;
  FileDescriptor file_;
  uint64_t size_ = 0;
  bool tail_unknown_ = false;  // an append failed and the cut after it failed too
};

}  // namespace faultline
