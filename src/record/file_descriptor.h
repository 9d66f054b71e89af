// An owned POSIX file descriptor and the few calls our records need on it. iostreams hide short writes and errno, and
// cannot sync; a record that says "on disk" needs all three. Every failure is a RuntimeFailure with the path and the
// system's own words.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace faultline {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_ = -1;
};

// `what` completes "PATH: cannot …".
[[noreturn]] void fail_with_errno(const std::filesystem::path& path, std::string_view what, int error);

// O_CLOEXEC is added to the flags: trial processes must not inherit our records.
FileDescriptor open_file(const std::filesystem::path& path, int flags, int mode = 0644);

// All bytes or an exception; how many were written before the exception is unknown.
void write_all(const FileDescriptor& file, std::string_view bytes, const std::filesystem::path& path);

void sync_file(const FileDescriptor& file, const std::filesystem::path& path);
void sync_data(const FileDescriptor& file, const std::filesystem::path& path);
// Makes a creation or a rename in the directory durable.
void sync_directory(const std::filesystem::path& directory);

void read_blocks(const std::filesystem::path& path, const std::function<void(std::string_view block)>& visit);
std::string read_file(const std::filesystem::path& path, size_t max_bytes);

}  // namespace faultline
