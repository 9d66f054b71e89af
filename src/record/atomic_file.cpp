// The temporary name carries the process id and a counter and is opened O_EXCL, so that neither another thread nor
// another process (nor a planted symbolic link) ever shares it.
#include "record/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "record/file_descriptor.h"

namespace faultline {
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
