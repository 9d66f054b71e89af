// An owned POSIX file descriptor and the few calls our records need on it. iostreams hide short writes and errno, and
// cannot sync; a record that says "on disk" needs all three. Every failure is a RuntimeFailure with the path and the
// system's own words.
#pragma once

#include <cstddef>
#include <cstdint>
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
// A file that a user named: what is wrong with it is the user's mistake.
std::string read_given_file(const std::filesystem::path& path, size_t max_bytes);

// A file that holds a model or tensors, told by its first bytes: "GGUF", "safetensors"; "" of any other and of a
// folder.
std::string tensor_file_format(const std::filesystem::path& path);

// A file that only grows, in whole pieces. A piece that could not be written and synced is cut off again, so that a
// full disk never leaves half a piece for the next one to be glued to. Shared by the event log and the TensorBoard
// file.

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

// A file that is either the old one or the new one, at any moment and after any crash: written under a temporary name
// in the same directory, synced, renamed over the target, the directory synced. When the call returns the content is on
// disk; when it throws the target is untouched and the temporary removed.

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

// The same for content that is made piece by piece: `fill` gets the function that appends.
using ByteSink = std::function<void(std::string_view bytes)>;
void write_file_atomically(const std::filesystem::path& path, const std::function<void(const ByteSink& write)>& fill);

// Temporaries of processes that were killed half-way. Call only while holding the directory's lock: a live writer's
// temporary looks the same.
void remove_stale_temporaries(const std::filesystem::path& directory);

}  // namespace faultline
