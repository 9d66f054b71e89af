// The holder is written after the lock is taken; a reader may find the text of the holder before, or none, so the text
// is never used to decide anything.
#include "record/directory_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>

#include "base/error.h"
#include "base/machine.h"

namespace faultline::record {
namespace {

constexpr size_t kMaxHolderBytes = 512;

std::string holder(const FileDescriptor& file) {
  char text[kMaxHolderBytes];
  const ssize_t got = ::pread(file.get(), text, sizeof text, 0);
  std::string name;
  for (ssize_t place = 0; place < got && text[place] != '\n'; ++place) {
    name += std::isprint(static_cast<unsigned char>(text[place])) ? text[place] : '?';
  }
  return name.empty() ? "another process" : name;
}

void name_holder(const FileDescriptor& file, const std::filesystem::path& path) {
  if (::ftruncate(file.get(), 0) != 0) fail_with_errno(path, "empty", errno);
  write_all(file, fmt::format("process {} on {}\n", ::getpid(), host_name()), path);
}

}  // namespace

DirectoryLock::DirectoryLock(const std::filesystem::path& directory) : owner_(::getpid()) {
  const std::filesystem::path path = directory / "lock";
  file_ = open_file(path, O_RDWR | O_APPEND | O_CREAT);
  int result = 0;
  do {
    result = ::flock(file_.get(), LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) {
    throw RuntimeFailure(fmt::format("{}: in use by {}; wait until it has finished or stop it, then run again",
                                     directory.string(), holder(file_)));
  }
  if (result != 0) fail_with_errno(path, "lock", errno);
  name_holder(file_, path);
}

DirectoryLock::~DirectoryLock() {
  if (file_.is_open() && owner_ == ::getpid()) ::flock(file_.get(), LOCK_UN);
}

}  // namespace faultline::record
