// EINTR and short writes are handled here and nowhere else. A sync is retried on EINTR only: after any other error the
// kernel may have dropped the dirty pages, and a second fsync would report a success that never happened.
#include "base/files/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
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

std::string read_given_file(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw UsageError(fmt::format("{}: no such file", path.string()));
  if (std::filesystem::is_directory(status))
    throw UsageError(fmt::format("{}: is a folder, not a file", path.string()));
  try {
    return read_file(path, max_bytes);
  } catch (const RuntimeFailure& failure) {
    throw UsageError(failure.what());
  }
}

std::string tensor_file_format(const std::filesystem::path& path) {
  std::array<char, 9> start = {};
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return "";
  const FileDescriptor file = open_file(path, O_RDONLY);
  const ssize_t size = ::read(file.get(), start.data(), start.size());
  if (size >= 4 && std::string_view(start.data(), 4) == "GGUF") return "GGUF";
  // Eight bytes with the size of a header that is a JSON object.
  const bool header = size == 9 && start[8] == '{' && start[5] == 0 && start[6] == 0 && start[7] == 0;
  return header ? "safetensors" : "";
}

// O_APPEND with an explicit cut rather than positioned writes: after the cut the kernel itself keeps pieces adjacent.
// After a failed sync the same bytes are cut and written anew, which dirties their pages again; syncing twice would
// not.

AppendFile::AppendFile(const std::filesystem::path& path, Existing existing) : path_(path) {
  file_ = open_file(path, O_WRONLY | O_APPEND | O_CREAT | (existing == Existing::kRefuse ? O_EXCL : 0));
  struct stat status{};
  if (::fstat(file_.get(), &status) != 0) fail_with_errno(path_, "examine", errno);
  size_ = static_cast<uint64_t>(status.st_size);
  sync_directory(path_.parent_path());
}

void AppendFile::append_durably(std::string_view piece) {
  if (tail_unknown_) cut_to(size_);
  try {
    write_all(file_, piece, path_);
    sync_data(file_, path_);
  } catch (const RuntimeFailure&) {
    tail_unknown_ = true;
    try {
      cut_to(size_);
    } catch (const RuntimeFailure&) {
      // tail_unknown_ stays: the next append cuts first. The first failure is the one to report.
    }
    throw;
  }
  size_ += piece.size();
}

void AppendFile::truncate(uint64_t size) {
  FL_ASSERT(size <= size_);
  cut_to(size);
}

void AppendFile::cut_to(uint64_t size) {
  int result = 0;
  do {
    result = ::ftruncate(file_.get(), static_cast<off_t>(size));
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail_with_errno(path_, "cut an incomplete piece off", errno);
  sync_data(file_, path_);
  size_ = size;
  tail_unknown_ = false;
}

// The temporary name carries the process id and a counter and is opened O_EXCL, so that neither another thread nor
// another process (nor a planted symbolic link) ever shares it.

namespace {

constexpr std::string_view kMark = ".faultline-tmp.";

class Temporary {
 public:
  explicit Temporary(const std::filesystem::path& target) {
    static std::atomic<unsigned> counter{0};
    for (;;) {
      path_ =
          target.parent_path() / fmt::format(".{}{}{}.{}", target.filename().string(), kMark, ::getpid(), counter++);
      const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
      if (descriptor >= 0) {
        file_ = FileDescriptor(descriptor);
        return;
      }
      if (errno != EEXIST && errno != EINTR) fail_with_errno(target, "create a temporary file beside it", errno);
    }
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  void write(std::string_view bytes, const std::filesystem::path& target) { write_all(file_, bytes, target); }

  void finish(const std::filesystem::path& target) {
    sync_file(file_, target);
    // Network file systems report a full disk at close.
    if (::close(file_.release()) != 0 && errno != EINTR) fail_with_errno(target, "close", errno);
  }

  void rename_to(const std::filesystem::path& target) {
    if (std::rename(path_.c_str(), target.c_str()) != 0)
      fail_with_errno(target, "rename the new file into place", errno);
    path_.clear();
  }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  write_file_atomically(path, [&](const ByteSink& write) { write(bytes); });
}

void write_file_atomically(const std::filesystem::path& path, const std::function<void(const ByteSink&)>& fill) {
  Temporary temporary(path);
  fill([&](std::string_view bytes) { temporary.write(bytes, path); });
  temporary.finish(path);
  temporary.rename_to(path);
  sync_directory(path.parent_path());
}

void remove_stale_temporaries(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error) fail_with_errno(directory, "list", error.value());
  for (; entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (error) fail_with_errno(directory, "list", error.value());
    const std::string name = entries->path().filename().string();
    if (name.starts_with('.') && name.find(kMark) != std::string::npos) ::unlink(entries->path().c_str());
  }
}

}  // namespace faultline
