// EINTR and short writes are handled here and nowhere else. A sync is retried on EINTR only: after any other error the
// kernel may have dropped the dirty pages, and a second fsync would report a success that never happened.
#include "record/file_descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace faultline {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 18;

std::string_view remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "; free some space and resume";
    case EACCES:
    case EPERM:
    case EROFS: return "; check the permissions or choose another --out";
    case EMFILE: return "; raise the limit of open files (ulimit -n)";
    default: return "";
  }
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (is_open()) ::close(descriptor_);
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (is_open()) ::close(descriptor_);
}

void fail_with_errno(const std::filesystem::path& path, std::string_view what, int error) {
  throw RuntimeFailure(fmt::format("{}: cannot {}: {}{}", path.string(), what, std::strerror(error), remedy(error)));
}

FileDescriptor open_file(const std::filesystem::path& path, int flags, int mode) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) fail_with_errno(path, (flags & O_CREAT) ? "create" : "open", errno);
  return FileDescriptor(descriptor);
}

void write_all(const FileDescriptor& file, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno(path, fmt::format("write {} bytes", bytes.size()), errno);
    if (written == 0) fail_with_errno(path, fmt::format("write {} bytes", bytes.size()), EIO);  // would loop for ever
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void sync_file(const FileDescriptor& file, const std::filesystem::path& path) {
  while (::fsync(file.get()) != 0) {
    if (errno != EINTR) fail_with_errno(path, "sync to disk", errno);
  }
}

void sync_data(const FileDescriptor& file, const std::filesystem::path& path) {
  while (::fdatasync(file.get()) != 0) {
    if (errno != EINTR) fail_with_errno(path, "sync to disk", errno);
  }
}

void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path place = directory.empty() ? std::filesystem::path(".") : directory;
  const FileDescriptor file = open_file(place, O_RDONLY | O_DIRECTORY);
  while (::fsync(file.get()) != 0) {
    if (errno == EINVAL) return;  // file systems without directory sync (some network mounts) order renames themselves
    if (errno != EINTR) fail_with_errno(place, "sync the directory", errno);
  }
}

void read_blocks(const std::filesystem::path& path, const std::function<void(std::string_view block)>& visit) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  std::vector<char> block(kBlockBytes);
  for (;;) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno(path, "read", errno);
    if (got == 0) return;
    visit(std::string_view(block.data(), static_cast<size_t>(got)));
  }
}

std::string read_file(const std::filesystem::path& path, size_t max_bytes) {
  std::string content;
  read_blocks(path, [&](std::string_view block) {
    if (content.size() + block.size() > max_bytes) {
      throw RuntimeFailure(
          fmt::format("{}: larger than the {} bytes this kind of file may have", path.string(), max_bytes));
    }
    content.append(block);
  });
  return content;
}

}  // namespace faultline
