// A whole file as read-only memory. Note [Mapped files]: what a file announces is checked against the size it had when
// it was opened; a file that another process shortens afterwards would end ours with SIGBUS at the first missing page.
// check_unchanged() turns that into a sentence for all but a cut made during the read itself; replacing a file by
// rename, as every tool of ours does, is always safe.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/files/file.h"

namespace faultline {

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // UsageError where it is not a regular file
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text(std::size_t begin, std::size_t count) const;  // both within the file

  void check_unchanged() const;  // RuntimeFailure where the file has become shorter
  // The pages that lie wholly within may leave this process's memory; they come back when they are read again.
  void forget(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  std::span<const std::byte> bytes_;
};

}  // namespace faultline
