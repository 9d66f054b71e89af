// O_APPEND with an explicit cut rather than positioned writes: after the cut the kernel itself keeps pieces adjacent.
// After a failed sync the same bytes are cut and written anew, which dirties their pages again; syncing twice would
// not.
#include "record/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace faultline {

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

}  // namespace faultline
