// Exclusive use of a run directory, as long as the object lives. flock() on a file that is never deleted: the kernel
// drops the lock of a killed process, so there are no stale locks to reason about, and two handles exclude each other
// even within one process. The file's text only names the holder, for the sentence that refuses the second one.
#pragma once

#include <sys/types.h>

#include <filesystem>

#include "base/files/file.h"

namespace faultline::record {

class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& directory);
  DirectoryLock(DirectoryLock&&) = default;
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock();

 private:
  FileDescriptor file_;
  pid_t owner_;  // a forked child shares the lock and must not release it
};

}  // namespace faultline::record
